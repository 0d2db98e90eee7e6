#include "pages.h"

#include <algorithm>

namespace cli {
namespace {

constexpr size_t kMostPages = size_t{1} << 20;  // labels that a feed may have; what comes behind them is on no page

}  // namespace

std::vector<quire_label> find_pages(std::string_view text) {
  std::vector<quire_label> pages;
  if (text.find('\f') == std::string_view::npos) return pages;
  for (size_t begin = 0; begin < text.size() && pages.size() < kMostPages;) {
    const size_t feed = text.find('\f', begin);
    const size_t end = feed == std::string_view::npos ? text.size() : feed + 1;
    pages.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end), static_cast<int64_t>(pages.size()) + 1});
    begin = end;
  }
  return pages;
}

int64_t page_of(const std::vector<quire_label>& pages, int64_t begin, int64_t end) {
  int64_t page = 0, most = 0;
  const auto first = std::partition_point(pages.begin(), pages.end(), [&](const auto& p) { return p.end <= begin; });
  for (auto p = first; p != pages.end() && p->begin < end; ++p) {
    const int64_t common = std::min(p->end, end) - std::max(p->begin, begin);
    if (common > most) most = common, page = p->id;
  }
  return page;
}

}  // namespace cli
