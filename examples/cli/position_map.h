// A strategy's relative positions as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cli {

struct PositionMap {
  struct Panel {
    std::string title;
    int64_t n_rows = 0;
    int64_t n_columns = 0;
    std::vector<double> distances;  // row by row; NaN: not visible
  };
  std::string title;
  std::string subtitle;
  int64_t train_len = 0;                   // distances from here on were never trained
  std::vector<std::vector<Panel>> panels;  // rows of panels; those of a row have as many rows
};

// How a distance is written: "." where a key is not visible.
std::string distance_text(double distance);

// An SVG file: a cell for each query (down) and key (across), coloured by distance and, where there is room, labelled.
std::string to_svg(const PositionMap& map);

}  // namespace cli
