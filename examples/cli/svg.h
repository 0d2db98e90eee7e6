// Parts of a picture in SVG.
#pragma once

#include <string>

namespace cli {

std::string number(double value);  // as coordinates are written

// Valid in XML whatever came in: a model's path can be any bytes.
std::string escape(const std::string& raw);

std::string text_at(double x, double y, const std::string& attributes, const std::string& text);

// A whole file with titles over `body`, at least so wide and high: no scripts, fonts or files from elsewhere.
std::string svg_document(const std::string& title, const std::string& subtitle, double width, double height,
                         const std::string& body);

}  // namespace cli
