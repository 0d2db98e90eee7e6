#include "position_map.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "colour_scale.h"
#include "svg.h"

namespace cli {
namespace {

constexpr double kLeft = 46, kTop = 84, kBottom = 20, kRight = 128, kGap = 30;
constexpr double kScaleWidth = 14, kScaleHeight = 120;
constexpr double kMostWidth = 720, kMostCell = 22;  // of the matrix, of a cell
constexpr double kLabelledCell = 15;                // a cell this large has its distance in it
constexpr Colour kHidden = {238, 238, 238}, kUntrained = {190, 30, 45};

Colour cell_colour(double distance, int64_t train_len) {
  if (std::isnan(distance)) return kHidden;
  if (distance >= static_cast<double>(train_len)) return kUntrained;
  return colour_of(train_len > 1 ? distance / static_cast<double>(train_len - 1) : 0);
}

std::string cell(double x, double y, double size, double distance, int64_t train_len) {
  const Colour colour = cell_colour(distance, train_len);
  const double line = size >= 6 ? 1 : 0;
  std::string svg = rectangle(x, y, size - line, size - line, colour) + "\n";
  if (size < kLabelledCell || std::isnan(distance)) return svg;
  const std::string text = distance_text(distance);
  const double font = std::min(11.0, 1.5 * size / static_cast<double>(text.size()));
  return svg + text_at(x + (size - line) / 2, y + size / 2 + font / 3,
                       std::string("text-anchor=\"middle\" font-size=\"") + number(font) + "\" fill=\"" +
                           ink_on(colour) + "\"",
                       text);
}

std::string draw(const PositionMap::Panel& panel, double x, double y, double size, int64_t train_len) {
  std::string svg = text_at(x, y - 7, "fill=\"#555\"", panel.title);
  for (int64_t row = 0; row < panel.n_rows; ++row) {
    for (int64_t column = 0; column < panel.n_columns; ++column) {
      svg += cell(x + size * static_cast<double>(column), y + size * static_cast<double>(row), size,
                  panel.distances[static_cast<size_t>(row * panel.n_columns + column)], train_len);
    }
  }
  return svg;
}

std::string swatch(double x, double y, const Colour& colour, const std::string& text) {
  return rectangle(x, y, kScaleWidth, kScaleWidth, colour) + "\n" + text_at(x + kScaleWidth + 6, y + 11, "", text);
}

std::string legend(double x, int64_t train_len) {
  const double below = kTop + kScaleHeight;
  return text_at(x, kTop - 7, "fill=\"#555\"", "distance") + colour_bar(x, kTop, kScaleWidth, kScaleHeight) +
         text_at(x + kScaleWidth + 6, kTop + 10, "", std::to_string(train_len - 1)) +
         text_at(x + kScaleWidth + 6, below, "", "0") + swatch(x, below + 12, kHidden, "not visible") +
         swatch(x, below + 34, kUntrained, "never trained");
}

}  // namespace

std::string distance_text(double distance) {
  if (std::isnan(distance)) return ".";
  char text[32];
  std::snprintf(text, sizeof text, distance == std::floor(distance) ? "%.0f" : "%.2f", distance);
  return text;
}

std::string to_svg(const PositionMap& map) {
  int64_t most_columns = 1;
  for (const auto& row : map.panels) {
    int64_t columns = 0;
    for (const PositionMap::Panel& panel : row) columns += panel.n_columns;
    most_columns = std::max(most_columns, columns);
  }
  const double size = std::min(kMostCell, kMostWidth / static_cast<double>(most_columns));
  std::string body;
  double y = kTop, right = 0;
  for (const auto& row : map.panels) {
    double x = kLeft, height = 0;
    for (const PositionMap::Panel& panel : row) {
      body += draw(panel, x, y, size, map.train_len);
      x += size * static_cast<double>(panel.n_columns) + kGap;
      height = std::max(height, size * static_cast<double>(panel.n_rows));
    }
    right = std::max(right, x);
    y += height + kGap;
  }
  const double height = std::max(y - kGap, kTop + kScaleHeight + 50) + kBottom;
  return svg_document(map.title, map.subtitle, right + kRight, height, body + legend(right, map.train_len));
}

}  // namespace cli
