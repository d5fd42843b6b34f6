// `outrider simulate`: the production coordinator and policies on a simulated cluster.
#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace outrider {

// Owns what the flags fill; must live until run() has returned.
class SimulateCommand {
 public:
  SimulateCommand();
  ~SimulateCommand();
  void add_options(CLI::App& app);  // once
  int run();  // an exit code

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace outrider
