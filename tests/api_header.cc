// Compiled as C++17 with -pedantic: what a C++ user of adder.h sees.
#include <adder/adder.h>

adder_session_options SmallTile();
adder_session_options SmallTile() {
  adder_session_options options = ADDER_INIT(adder_session_options);
  options.tile = 1;
  return options;
}
