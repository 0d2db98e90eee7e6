// The calendar where the system is.
#pragma once

namespace quire {

struct LocalDay {
  int year = 1970;
  int month = 1;  // 1 to 12
  int day = 1;
};

// Of this moment, in the local time zone.
LocalDay local_day();

}  // namespace quire
