#include "line_chart.h"

#include <algorithm>
#include <cmath>

#include "svg.h"

namespace cli {
namespace {

constexpr double kStep = 64, kHeight = 240;
constexpr double kLeft = 86, kTop = 78, kBottom = 58, kRight = 40;

// A distance of ticks that are easily read: at most six of them up to `most`.
double tick_distance(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (most <= 5 * step * power) return step * power;
  }
  return 10 * power;
}

std::string line(double x1, double y1, double x2, double y2) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
         "\" stroke=\"#ddd\"/>\n";
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  double most = chart.percent ? 1 : 0;
  for (const auto& point : chart.points) {
    if (std::isfinite(point.value)) most = std::max(most, point.value);
  }
  const double tick = most > 0 ? tick_distance(most) : 1;
  const double top = chart.percent ? 1 : tick * std::max(1.0, std::ceil(most / tick));
  const double width = kStep * static_cast<double>(chart.points.size());
  std::string body;
  for (int i = 0; i * tick <= top * (1 + 1e-9); ++i) {
    const double y = kTop + kHeight * (1 - i * tick / top);
    const std::string label = chart.percent ? number(100 * i * tick) + " %" : number(i * tick);
    body += line(kLeft, y, kLeft + width, y) + text_at(kLeft - 8, y + 4, "text-anchor=\"end\"", label);
  }
  std::string path, marks;
  for (size_t i = 0; i < chart.points.size(); ++i) {
    const auto& point = chart.points[i];
    const double x = kLeft + kStep * (static_cast<double>(i) + 0.5);
    body += text_at(x, kTop + kHeight + 16, "text-anchor=\"middle\"", point.label);
    if (!std::isfinite(point.value)) continue;
    const double y = kTop + kHeight * (1 - point.value / top);
    path += (path.empty() ? "" : " ") + number(x) + "," + number(y);
    marks += "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"4\" fill=\"#00224e\"><title>" +
             escape(point.tooltip) + "</title></circle>\n";
  }
  body += "<polyline points=\"" + path + "\" fill=\"none\" stroke=\"#00224e\" stroke-width=\"2\"/>\n" + marks;
  body += text_at(kLeft + width / 2, kTop + kHeight + 40, "text-anchor=\"middle\" font-weight=\"bold\"", chart.x_label);
  const double middle = kTop + kHeight / 2;
  body += text_at(22, middle,
                  "text-anchor=\"middle\" font-weight=\"bold\" transform=\"rotate(-90 22 " + number(middle) + ")\"",
                  chart.y_label);
  return svg_document(chart.title, chart.subtitle, kLeft + width + kRight, kTop + kHeight + kBottom, body);
}

}  // namespace cli
