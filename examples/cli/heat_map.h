// A table of fractions as a picture.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct HeatMap {
  struct Cell {
    double value = 0;     // 0 to 1: the colour
    std::string label;    // in the cell
    std::string tooltip;  // when pointed at
  };
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  std::string scale_label;
  std::vector<std::string> columns;
  std::vector<std::string> rows;
  std::vector<Cell> cells;  // row by row
};

// An SVG file, in the colours of colour_scale.h.
std::string to_svg(const HeatMap& map);

}  // namespace cli
