#include "heat_map.h"

#include "colour_scale.h"
#include "svg.h"

namespace cli {
namespace {

constexpr int kCellWidth = 64, kCellHeight = 36;
constexpr int kLeft = 86, kTop = 78, kBottom = 58, kRight = 96;
constexpr int kScaleWidth = 14;

std::string cells(const HeatMap& map) {
  std::string svg;
  for (size_t i = 0; i < map.cells.size(); ++i) {
    const double x = kLeft + kCellWidth * static_cast<double>(i % map.columns.size());
    const double y = kTop + kCellHeight * static_cast<double>(i / map.columns.size());
    const HeatMap::Cell& cell = map.cells[i];
    const Colour colour = colour_of(cell.value);
    svg += "<g class=\"cell\"><title>" + escape(cell.tooltip) + "</title>" +
           rectangle(x, y, kCellWidth - 1, kCellHeight - 1, colour) + "\n" +
           text_at(x + kCellWidth / 2.0, y + kCellHeight / 2.0 + 4,
                   std::string("text-anchor=\"middle\" fill=\"") + ink_on(colour) + "\"", cell.label) +
           "</g>\n";
  }
  return svg;
}

std::string axes(const HeatMap& map, double width, double height) {
  std::string svg;
  for (size_t c = 0; c < map.columns.size(); ++c) {
    svg += text_at(kLeft + kCellWidth * (static_cast<double>(c) + 0.5), kTop + height + 16, "text-anchor=\"middle\"",
                   map.columns[c]);
  }
  for (size_t r = 0; r < map.rows.size(); ++r) {
    svg +=
        text_at(kLeft - 8, kTop + kCellHeight * (static_cast<double>(r) + 0.5) + 4, "text-anchor=\"end\"", map.rows[r]);
  }
  svg += text_at(kLeft + width / 2, kTop + height + 40, "text-anchor=\"middle\" font-weight=\"bold\"", map.x_label);
  const double middle = kTop + height / 2;
  return svg +
         text_at(22, middle,
                 "text-anchor=\"middle\" font-weight=\"bold\" transform=\"rotate(-90 22 " + number(middle) + ")\"",
                 map.y_label);
}

std::string scale(const HeatMap& map, double width, double height) {
  const double x = kLeft + width + 22;
  std::string svg = colour_bar(x, kTop, kScaleWidth, height);
  svg += text_at(x + kScaleWidth + 5, kTop + 10, "", "100 %") + text_at(x + kScaleWidth + 5, kTop + height, "", "0 %");
  return svg + text_at(x + kScaleWidth / 2.0, kTop - 8, "text-anchor=\"middle\"", map.scale_label);
}

}  // namespace

std::string to_svg(const HeatMap& map) {
  const double width = kCellWidth * static_cast<double>(map.columns.size());
  const double height = kCellHeight * static_cast<double>(map.rows.size());
  return svg_document(map.title, map.subtitle, kLeft + width + kRight, kTop + height + kBottom,
                      axes(map, width, height) + cells(map) + scale(map, width, height));
}

}  // namespace cli
