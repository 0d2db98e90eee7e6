#include "colour_scale.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "svg.h"

namespace cli {
namespace {

// Stops of the cividis map (Nunez, Anderton and Renslow 2018), evenly spaced.
constexpr Colour kStops[] = {{0, 34, 78},     {53, 69, 108},   {102, 105, 112},
                             {148, 142, 119}, {200, 184, 102}, {254, 232, 56}};
constexpr int kIntervals = 5;

std::string hex(const Colour& c) {
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", static_cast<int>(std::lround(c.red)) & 255,
                static_cast<int>(std::lround(c.green)) & 255, static_cast<int>(std::lround(c.blue)) & 255);
  return text;
}

}  // namespace

Colour colour_of(double value) {
  const double at = std::clamp(value, 0.0, 1.0) * kIntervals;
  const int low = std::min(static_cast<int>(at), kIntervals - 1);
  const double t = at - low;
  const Colour &a = kStops[low], &b = kStops[low + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green), a.blue + t * (b.blue - a.blue)};
}

const char* ink_on(const Colour& c) { return 0.299 * c.red + 0.587 * c.green + 0.114 * c.blue > 125 ? "#111" : "#fff"; }

std::string rectangle(double x, double y, double width, double height, const Colour& fill) {
  return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
         number(height) + "\" fill=\"" + hex(fill) + "\"/>";
}

std::string colour_bar(double x, double top, double width, double height) {
  constexpr int kSteps = 40;
  std::string svg;
  for (int i = 0; i < kSteps; ++i) {
    svg +=
        rectangle(x, top + height * i / kSteps, width, height / kSteps + 0.5, colour_of(1 - (i + 0.5) / kSteps)) + "\n";
  }
  return svg;
}

}  // namespace cli
