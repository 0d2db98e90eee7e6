// A row of values as a picture.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct LineChart {
  struct Point {
    std::string label;  // under it
    double value = 0;   // not negative
    std::string tooltip;
  };
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  bool percent = false;  // values from 0 to 1
  std::vector<Point> points;
};

// An SVG file: points at equal distances, joined by a line, over an axis that begins at 0.
std::string to_svg(const LineChart& chart);

}  // namespace cli
