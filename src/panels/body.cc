// SPDX-License-Identifier: Apache-2.0
#include "panels/body.h"

#include "base/cpu_info.h"

namespace moekit::panels {

const Body& body_for(Isa isa) noexcept {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAmx:
      return kAmxBody;
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

const Body& running_body(Isa isa) noexcept {
#if defined(__x86_64__)
  static const bool prefers_fma = base::detect_cpu().dots_at_half_rate;
  if (isa == Isa::kAvx512 && prefers_fma) {
    return kAvx512FmaBody;
  }
#endif
  return body_for(isa);
}

}  // namespace moekit::panels
