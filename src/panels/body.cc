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
  static const base::CpuInfo cpu = base::detect_cpu();
  if (isa == Isa::kAvx512 && cpu.dots_at_half_rate) {
    return kAvx512FmaBody;
  }
  if (isa == Isa::kAvx2 && cpu.avx_vnni) {
    return kAvx2VnniBody;
  }
#endif
  return body_for(isa);
}

}  // namespace moekit::panels
