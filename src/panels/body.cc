// SPDX-License-Identifier: Apache-2.0
#include "panels/body.h"

namespace moekit::panels {

const Body& body_for(Isa isa) noexcept {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512Body;
    case Isa::kAvx2:
      return kAvx2Body;
    case Isa::kPortable:
      break;
  }
#else
  static_cast<void>(isa);  // other processors run the portable body under every name
#endif
  return kPortableBody;
}

}  // namespace moekit::panels
