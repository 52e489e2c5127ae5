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

const Body& running_body(Isa isa, ExecutionFamily family) noexcept {
#if defined(__x86_64__)
  static const base::CpuInfo cpu = base::detect_cpu();
  // Digits take twice the products of dots and have twice their rate where this holds; where dots
  // have the full rate, these win from a few tokens on.
  if (isa == Isa::kAvx512 && cpu.dots_at_half_rate) {
    return kAvx512DigitBody;
  }
  if (isa == Isa::kAvx2 && cpu.avx_vnni) {
    return kAvx2VnniBody;
  }
  if (isa == Isa::kAmx && family == ExecutionFamily::kDirect) {
    return kAmxDirectBody;
  }
#else
  static_cast<void>(family);
#endif
  return body_for(isa);
}

}  // namespace moekit::panels
