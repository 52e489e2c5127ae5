# SPDX-License-Identifier: Apache-2.0
"""Write the golden tables of testdata/golden/.

Every table comes from a third party's arithmetic (ml_dtypes), and is compared with a second one
(torch) or with exact rational arithmetic before it is written. Nothing here is moekit's own code:
a mistake in moekit's codecs cannot repeat itself in these files.

    pip install -r testdata/generate/requirements-modelopt.txt
    python testdata/generate/make_golden.py testdata/golden
"""

from __future__ import annotations

import argparse
import random
import struct
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

SEED = 20240611

E2M1 = ml_dtypes.float4_e2m1fn
E4M3 = ml_dtypes.float8_e4m3fn
E5M2 = ml_dtypes.float8_e5m2
E8M0 = ml_dtypes.float8_e8m0fnu
BF16 = ml_dtypes.bfloat16

E4M3_MAX = np.float32(448.0)
TOOLS = f"ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}, torch {torch.__version__.split('+')[0]}"


def bits(x) -> int:
    """The 32 bits of an f32."""
    return struct.unpack("<I", struct.pack("<f", float(x)))[0] if not np.isnan(x) else 0x7FC00000


def from_bits(u: int) -> np.float32:
    return np.array([u], np.uint32).view(np.float32)[0]


def f32_neighbours(x: float) -> list[int]:
    """Bits of x and of the f32 values next to it (x > 0, exactly representable)."""
    u = bits(np.float32(x))
    return [u - 1, u, u + 1]


def number(x) -> str:
    """A value in the shortest text that reads back as the same f64; f32 values are exact f64 values."""
    return "nan" if np.isnan(x) else repr(float(x))


def write(folder: Path, name: str, header: list[str], rows: list[str]) -> None:
    assert rows, name
    text = [f"# {line}".rstrip() for line in header]
    text += [f"# made by testdata/generate/make_golden.py with {TOOLS}, seed {SEED}", f"# rows: {len(rows)}"]
    (folder / name).write_text("\n".join(text + rows) + "\n")
    print(f"{name:28s} {len(rows):6d} rows")


# ----------------------------------------------------------------------------- decode tables


def decode_table(folder: Path, name: str, dtype, torch_dtype, count: int, about: list[str]) -> None:
    codes = np.arange(count, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    if torch_dtype is not None:
        other = torch.from_numpy(codes.copy()).view(torch_dtype).to(torch.float32).numpy()
        same = (values == other) | (np.isnan(values) & np.isnan(other))
        assert same.all(), (name, codes[~same])
        assert (np.signbit(values) == np.signbit(other))[~np.isnan(values)].all(), name
    rows = [f"{c:02x} {bits(v):08x} {number(v)}" for c, v in zip(codes.tolist(), values)]
    check = "compared with torch" if torch_dtype is not None else "torch has no scalar cast for this type"
    header = about + ["columns: code (hex), decoded f32 (hex bits, NaN written 7fc00000), the same value in decimal", check]
    write(folder, name, header, rows)


def decode_tables(folder: Path) -> None:
    decode_table(folder, "e2m1_decode.txt", E2M1, None, 16,
                 ["E2M1 of OCP Microscaling Formats (MX) v1.0, section 5.3.3: all 16 codes"])
    decode_table(folder, "e4m3_decode.txt", E4M3, torch.float8_e4m3fn, 256,
                 ["E4M3 of OCP 8-bit Floating Point (OFP8) v1.0 (no infinity, NaN = S.1111.111): all 256 codes"])
    decode_table(folder, "e5m2_decode.txt", E5M2, torch.float8_e5m2, 256,
                 ["E5M2 of OCP 8-bit Floating Point (OFP8) v1.0 (IEEE-like, has infinities): all 256 codes"])
    decode_table(folder, "e8m0_decode.txt", E8M0, torch.float8_e8m0fnu, 256,
                 ["E8M0 of OCP Microscaling Formats (MX) v1.0, section 5.4.1: 2^(code-127), 255 = NaN, no zero",
                  "code 0 is the f32 subnormal 2^-127: a decoder that flushes subnormals fails here"])


# ----------------------------------------------------------------------------- rounding tables


def positive_grid(dtype, count: int) -> list[float]:
    """The finite non-negative values of a small float, ascending; its codes ascend with them."""
    values = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float64)
    return [float(v) for v in values if np.isfinite(v)]


def rounding_cases(grid: list[float], over: list[float], rng: random.Random) -> list[tuple[str, int]]:
    """(kind, f32 bits): every value, every tie and its two neighbours, overflow, random ones; both signs."""
    cases = [("value", bits(np.float32(v))) for v in grid]
    for low, high in zip(grid, grid[1:]):
        below, tie, above = f32_neighbours((low + high) / 2)
        cases += [("below_tie", below), ("tie", tie), ("above_tie", above)]
    cases += [("overflow", bits(np.float32(v))) for v in over]
    tiny = [1, 2, 0x007FFFFF, 0x00800000, 0x00800001, 0x0DA24260]
    cases += [("underflow", u) for u in tiny]
    for _ in range(100):
        exponent = rng.uniform(np.log2(grid[1]) - 3, np.log2(grid[-1]) + 1)
        cases.append(("random", bits(np.float32(2.0**exponent * rng.uniform(0.5, 1.0)))))
    return cases + [(kind, u | 0x80000000) for kind, u in cases]


def exact_nearest(u: int, grid: list[float]) -> int:
    """Code of the nearest grid value by exact rational comparison, ties to the even code, saturating; sign ignored."""
    x = Fraction(float(from_bits(u & 0x7FFFFFFF)))
    return min(range(len(grid)), key=lambda c: (abs(Fraction(grid[c]) - x), c & 1))


def rounding_table(folder: Path, name: str, dtype, sign: int, over: list[float], about: list[str]) -> None:
    grid = positive_grid(dtype, sign)
    cases = rounding_cases(grid, over, random.Random(SEED))
    x = np.array([u for _, u in cases], np.uint32).view(np.float32)
    top = np.float32(grid[-1])
    codes = np.clip(x, -top, top).astype(dtype).view(np.uint8)
    if dtype is E4M3:
        other = torch.from_numpy(np.clip(x, -top, top)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        assert (codes == other).all(), "ml_dtypes and torch differ"
    for (kind, u), code in zip(cases, codes.tolist()):
        want = exact_nearest(u, grid) | (sign if u >> 31 else 0)
        assert code == want, (kind, hex(u), code, want)
    rows = [f"{u:08x} {code:02x} {kind}" for (kind, u), code in zip(cases, codes.tolist())]
    header = about + [
        "round to nearest, ties to even, saturating: the input is clamped to the largest finite value, then cast",
        "the sign of zero is kept; every row was also checked by exact rational arithmetic",
        "columns: input f32 (hex bits), code (hex), kind of case",
    ]
    write(folder, name, header, rows)


def rounding_tables(folder: Path) -> None:
    f32_max = float(np.finfo(np.float32).max)
    over = [448.00003, 449.0, 463.99997, 464.0, 464.00003, 465.0, 479.0, 480.0, 512.0, 65504.0, 1e9, f32_max]
    rounding_table(folder, "e4m3_round.txt", E4M3, 0x80, over, ["f32 -> E4M3 (OFP8 v1.0)"])
    over = [6.0000005, 6.5, 7.0, 7.0000005, 8.0, 448.0, 1e9, f32_max]
    rounding_table(folder, "e2m1_round.txt", E2M1, 0x8, over, ["f32 -> E2M1 (OCP MX v1.0)"])


def bf16_cases(rng: random.Random) -> list[tuple[str, int]]:
    cases = [("zero", 0), ("subnormal", 1), ("subnormal", 0x7FFF), ("tie", 0x8000), ("subnormal", 0x8001),
             ("tie", 0x00018000), ("subnormal", 0x007FFFFF), ("normal", 0x00800000), ("tie", 0x007F8000),
             ("max", 0x7F7F0000), ("below_tie", 0x7F7F7FFF), ("overflow", 0x7F7F8000), ("overflow", 0x7F7FFFFF),
             ("inf", 0x7F800000)]
    for _ in range(60):
        high = rng.randrange(0x0001, 0x7F7E) << 16
        cases += [("exact", high), ("below_tie", high | 0x7FFF), ("tie", high | 0x8000), ("above_tie", high | 0x8001),
                  ("random", high | rng.randrange(0x10000))]
    return cases + [(kind, u | 0x80000000) for kind, u in cases]


def bf16_table(folder: Path) -> None:
    cases = bf16_cases(random.Random(SEED))
    x = np.array([u for _, u in cases], np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        out = x.astype(BF16).view(np.uint16)
    other = torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (out == other).all(), "ml_dtypes and torch differ"
    rows = [f"{u:08x} {o:04x} {kind}" for (kind, u), o in zip(cases, out.tolist())]
    nan_bits = [0x7FC00000, 0x7F800001, 0xFF800001, 0x7F80FFFF, 0xFFFFFFFF]
    with np.errstate(invalid="ignore"):
        nans = np.array(nan_bits, np.uint32).view(np.float32).astype(BF16)
    assert np.isnan(nans.astype(np.float32)).all()
    rows += [f"{u:08x} {o:04x} nan" for u, o in zip(nan_bits, nans.view(np.uint16).tolist())]
    header = ["f32 -> BF16, round to nearest, ties to even, overflow to infinity, subnormals kept; compared with torch",
              "kind nan: any NaN is right, the payload and sign are this tool's",
              "columns: input f32 (hex bits), bf16 (hex bits), kind of case"]
    write(folder, "bf16_round.txt", header, rows)


# ----------------------------------------------------------------------------- activation scales


def q8_byte(amax: np.float32) -> int:
    """E8M0 byte of a 32-wide MXFP8 group: amax/448 in IEEE f32, rounded up to a power of two, clamped to 1..254."""
    if amax == 0:
        return 0
    quotient = Fraction(float(np.float32(amax) / E4M3_MAX))  # one IEEE f32 division, then exact
    if quotient == 0:
        return 1
    byte = -140
    power = Fraction(2) ** (byte - 127)
    while power < quotient:
        byte, power = byte + 1, power * 2
    return min(max(byte, 1), 254)


def q8_amax_cases(rng: random.Random) -> list[int]:
    special = [0.0, 0.4375, 1.0, 6.0, 447.0, 448.0, 449.0, 896.0, 897.0, 1e-38, 65504.0]
    cases = [bits(np.float32(v)) for v in special]
    cases += [0x7F7F0000, 0x7F7FFFFF, 0x00010000, 0x00000001, 0x007F0000, 0x00800000, 0x03E00000, 0x04600000]
    for e in range(-120, 128, 8):  # 448 * 2^k is the edge where the byte changes
        edge = bits(np.float32(448.0 * 2.0 ** (e - 8)))
        cases += [edge - 1, edge, edge + 1]
    cases += [rng.randrange(1, 0x7F7F) << 16 for _ in range(100)]
    return list(dict.fromkeys(cases))


def q8_amax_table(folder: Path) -> None:
    rows = [f"{u:08x} {q8_byte(from_bits(u)):3d} {number(from_bits(u))}" for u in q8_amax_cases(random.Random(SEED))]
    published = {0.0: 0, 0.4375: 117, 1.0: 119, 447.0: 127, 448.0: 127, 449.0: 128}
    for amax, byte in published.items():
        assert q8_byte(np.float32(amax)) == byte, amax
    assert q8_byte(from_bits(0x7F7F0000)) == 247 and q8_byte(from_bits(0x00010000)) == 1
    header = ["MXFP8 group scale (rule Q8): E8M0 byte from the group's largest magnitude",
              "byte = exponent field of amax/448 (one IEEE f32 division, no flush to zero) rounded up to a power of two,",
              "clamped to 1..254; amax = 0 -> 0. Computed here with numpy's f32 division and exact rational comparison",
              "columns: amax f32 (hex bits), byte (decimal), amax in decimal"]
    write(folder, "q8_amax_byte.txt", header, rows)


def activation_values(rng: np.random.Generator, width: int, scale: float) -> np.ndarray:
    """A BF16-exact row, as activations are."""
    return (rng.standard_normal(width) * scale).astype(BF16).astype(np.float32)


def hex_row(values, digits: int) -> str:
    return "".join(f"{v:0{digits}x}" for v in values)


def group_rows(rng: np.random.Generator, width: int) -> list[np.ndarray]:
    """Groups over the whole range of magnitudes, short ones, an all-zero one and one with a single outlier."""
    rows = [activation_values(rng, width, s) for s in (1.0, 1e-3, 37.0, 3e4, 1e30, 1e-30, 2e-38, 5e-40)]
    rows += [activation_values(rng, width // 2, 1.0), activation_values(rng, 8, 0.02), np.zeros(width, np.float32)]
    outlier = activation_values(rng, width, 1e-2)
    outlier[3] = -240.0
    return rows + [outlier]


def q8_group_table(folder: Path) -> None:
    rng = np.random.default_rng(SEED)
    rows = []
    for x in group_rows(rng, 32):
        byte = q8_byte(np.abs(x).max())
        scale = np.ldexp(np.float32(1), 127 - byte) if byte else np.float32(0)
        code = np.clip(x * scale, -E4M3_MAX, E4M3_MAX).astype(E4M3).view(np.uint8)
        if byte == 0:
            code[:] = 0
        rows.append(f"{byte:3d} {hex_row(code.tolist(), 2)} {hex_row((x.view(np.uint32) >> 16).tolist(), 4)}")
    header = ["MXFP8 groups (rule Q8): payload = E4M3, RNE saturating, of x * 2^(127-byte) in f32; amax = 0 -> byte 0, payload 0",
              "columns: byte (decimal), payload (2 hex digits an element), input bf16 (4 hex digits an element); 32, 16 or 8 elements"]
    write(folder, "q8_groups.txt", header, rows)


def q8b_group_table(folder: Path) -> None:
    rng = np.random.default_rng(SEED + 1)
    rows = []
    for x in group_rows(rng, 128):
        scale = np.float32(np.abs(x).max() / E4M3_MAX)
        code = np.zeros(x.size, np.uint8)
        if scale != 0:
            code = np.clip(x / scale, -E4M3_MAX, E4M3_MAX).astype(E4M3).view(np.uint8)
        rows.append(f"{bits(scale):08x} {hex_row(code.tolist(), 2)} {hex_row((x.view(np.uint32) >> 16).tolist(), 4)}")
    header = ["FP8 128-wide groups (rule Q8b): scale = amax/448 in f32, payload = E4M3, RNE saturating, of x/scale (true division)",
              "amax = 0 or scale = 0 -> payload 0",
              "columns: scale f32 (hex bits), payload (2 hex digits an element), input bf16 (4 hex digits an element)"]
    write(folder, "q8b_groups.txt", header, rows)


def q4_group_table(folder: Path) -> None:
    rng = np.random.default_rng(SEED + 2)
    rows = []
    for global_scale in (1.0, 0.0004, 0.0123, 250.0):
        gi = np.float32(global_scale)
        for x in group_rows(rng, 16):
            amax = np.float32(np.abs(x).max())
            ratio = amax / np.float32(np.float32(6.0) * gi)
            scale = np.minimum(ratio, E4M3_MAX).astype(E4M3)
            d = np.float32(scale.astype(np.float32) * gi)
            code = np.zeros(x.size, np.uint8)
            if d != 0:
                code = np.clip(x / d, np.float32(-6), np.float32(6)).astype(E2M1).view(np.uint8)
            rows.append(f"{bits(gi):08x} {int(scale.view(np.uint8)):02x} {hex_row(code.tolist(), 1)} "
                        f"{hex_row((x.view(np.uint32) >> 16).tolist(), 4)}")
    header = ["NVFP4 groups (rule Q4) with the dequant-side global gi: s = E4M3_RNE(min(amax/(6*gi), 448)), d = decode(s)*gi,",
              "code = E2M1_RNE(x/d) saturating at 6; d = 0 -> codes 0. All in IEEE f32, true division, no flush to zero.",
              "columns: gi f32 (hex bits), s (hex), codes (1 hex digit an element), input bf16 (4 hex digits an element)"]
    write(folder, "q4_groups.txt", header, rows)


# ----------------------------------------------------------------------------- whole rows of the weight formats

I4 = "codes 0..15 less 8"
# name: element, scale, elements along K that share a scale
FORMATS = {
    "nvfp4": (E2M1, E4M3, 16),
    "mxfp4": (E2M1, E8M0, 32),
    "bf16": (BF16, None, 0),
    "fp8_block128": (E4M3, np.float32, 128),
    "int4": (I4, BF16, 128),
}


def element_values(element, codes: np.ndarray) -> np.ndarray:
    if element == I4:
        return codes.astype(np.float32) - np.float32(8)
    if element == BF16:
        return codes.astype(np.uint16).view(BF16).astype(np.float32)
    return codes.astype(np.uint8).view(element).astype(np.float32)


def format_row(rng: random.Random, element, scale, group: int, cols: int) -> str:
    """`cols scales codes values`: bytes as stored, values f32 bits: element times scale, one rounding at most."""
    count = {BF16: 1 << 16, E4M3: 256}.get(element, 16)
    codes = np.array([rng.randrange(count) for _ in range(cols)])
    if element == E4M3:
        codes = np.where((codes & 0x7F) == 0x7F, 0x3C, codes)  # no NaN
    if element == BF16:
        codes = np.where((codes & 0x7F80) == 0x7F80, 0x3F80, codes)
    values, scale_bytes = element_values(element, codes), b""
    if scale is not None:
        groups = (cols + group - 1) // group
        if scale in (E4M3, E8M0):
            raw = np.array([rng.randrange(0x7F if scale == E4M3 else 200) for _ in range(groups)], np.uint8).view(scale)
        else:
            raw = np.array([rng.uniform(0.001, 2.0) for _ in range(groups)], np.float32).astype(scale)
        scale_bytes = raw.tobytes()
        values = (values.astype(np.float64) * np.repeat(raw.astype(np.float64), group)[:cols]).astype(np.float32)
    packed = (codes[0::2] | codes[1::2] << 4).astype(np.uint8) if count == 16 else codes.astype(np.uint16 if element == BF16 else np.uint8)
    return " ".join([str(cols), scale_bytes.hex() or "-", packed.tobytes().hex(), "".join(f"{bits(v):08x}" for v in values)])


def format_rows(folder: Path) -> None:
    for name, (element, scale, group) in FORMATS.items():
        rng = random.Random(f"{SEED} {name}")
        extents = sorted({8, 24, max(group, 8), group + 8, 2 * group + 16, 3 * max(group, 16)})
        write(folder, f"format_{name}.txt", [
            f"weight format {name}: one matrix row each, decoded",
            "columns: elements, bytes of the scales (- without), bytes of the codes (4 bits: low nibble = even k), values (f32 bits)",
        ], [format_row(rng, element, scale, group, cols) for cols in extents for _ in range(2)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    decode_tables(folder)
    rounding_tables(folder)
    bf16_table(folder)
    q8_amax_table(folder)
    q8_group_table(folder)
    q8b_group_table(folder)
    q4_group_table(folder)
    format_rows(folder)


if __name__ == "__main__":
    main()
