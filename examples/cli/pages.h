// Pages of a document. A form feed ends a page, as pdftotext writes it; pages count from 1. Text without a form feed
// has no pages.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire_handles.h"

namespace cli {

// A label for each page, with the page's number as its id; each begins where the one before ends.
std::vector<quire_label> find_pages(std::string_view text);

// The page that has most of bytes [begin, end), the first of equal ones; 0: none.
int64_t page_of(const std::vector<quire_label>& pages, int64_t begin, int64_t end);

}  // namespace cli
