#include "svg.h"

#include <algorithm>
#include <cstdio>

#include "document.h"

namespace cli {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string escape(const std::string& raw) {
  std::string text;
  for (const char c : valid_utf8(raw)) {
    switch (c) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      default:
        text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return text;
}

std::string text_at(double x, double y, const std::string& attributes, const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + attributes + ">" + escape(text) + "</text>\n";
}

std::string svg_document(const std::string& title, const std::string& subtitle, double width, double height,
                         const std::string& body) {
  // Titles are not wrapped: the picture is as wide as the longer one, at an advance that no sans-serif font exceeds.
  const double titles = std::max(10.0 * static_cast<double>(title.size()), 7.0 * static_cast<double>(subtitle.size()));
  const std::string all_width = number(std::max(width, titles + 40)), all_height = number(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + all_width + "\" height=\"" + all_height +
         "\" viewBox=\"0 0 " + all_width + " " + all_height +
         "\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>" +
         escape(title + ", " + subtitle) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" +
         text_at(20, 26, "font-size=\"16\" font-weight=\"bold\"", title) + text_at(20, 46, "fill=\"#555\"", subtitle) +
         body + "</svg>\n";
}

}  // namespace cli
