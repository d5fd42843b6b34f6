// A check of flags with numbers.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace outrider {

// As CLI::Range, which lets NaN pass.
inline CLI::Validator number_in(double least, double most) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return fits ? std::string() : fmt::format("{} must be {} to {}", text, least, most);
          },
          ""};
}

}  // namespace outrider
