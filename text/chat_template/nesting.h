// Counts depth while it lives: the parser and all that walk its tree are recursive.
#pragma once

namespace outrider::chat_template {

class Nesting {
 public:
  explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

}  // namespace outrider::chat_template
