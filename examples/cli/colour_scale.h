// Colours for numbers, in SVG.
#pragma once

#include <string>

namespace cli {

struct Colour {
  double red, green, blue;  // 0 to 255
};

// From dark blue (0) over grey to yellow (1): a scale that grows in lightness and reads the same to colour-blind eyes.
Colour colour_of(double value);

// The text colour that can be read on it.
const char* ink_on(const Colour& colour);

std::string rectangle(double x, double y, double width, double height, const Colour& fill);

// A bar from `top` down, from colour 1 to colour 0.
std::string colour_bar(double x, double top, double width, double height);

}  // namespace cli
