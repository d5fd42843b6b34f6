// First come, first served among the items of one client; clients take turns. One owner at a time.
#pragma once

#include <deque>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

namespace outrider {

template <class Item>
class FairQueue {
 public:
  bool empty() const { return turns_.empty(); }
  size_t size() const { return size_; }

  void add(const std::string& client, Item item) {
    const auto at = where_.find(client);
    if (at == where_.end()) {
      turns_.push_back({client, {}});
      where_.emplace(client, std::prev(turns_.end()));
    }
    where_.at(client)->items.push_back(std::move(item));
    ++size_;
  }
  // Removes and returns the next item; there must be one.
  Item take() {
    auto& turn = turns_.front();
    Item item = std::move(turn.items.front());
    turn.items.pop_front();
    --size_;
    if (turn.items.empty()) {
      where_.erase(turn.client);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    return item;
  }
  template <class Predicate>
  Item* find(Predicate predicate) {
    for (auto& turn : turns_)
      for (Item& item : turn.items)
        if (predicate(item)) return &item;
    return nullptr;
  }

 private:
  struct Turn {
    std::string client;
    std::deque<Item> items;
  };
  std::list<Turn> turns_;  // only those with items
  std::unordered_map<std::string, typename std::list<Turn>::iterator> where_;
  size_t size_ = 0;
};

}  // namespace outrider
