# SPDX-License-Identifier: Apache-2.0
"""Make testdata/checkpoints/: small checkpoints written by the tools that users use.

ModelOpt and llm-compressor ask for different versions of transformers, so there are two environments. In each of them
the script makes what its tools can make:

    pip install -r testdata/generate/requirements-modelopt.txt        # BF16, ModelOpt NVFP4, gpt-oss
    pip install -r testdata/generate/requirements-llmcompressor.txt   # compressed-tensors NVFP4
    python testdata/generate/make_checkpoints.py testdata/checkpoints            # all that this environment can make
    python testdata/generate/make_checkpoints.py testdata/checkpoints qwen3_moe_bf16
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

import torch

from provenance import check_no_paths, write_provenance

if importlib.util.find_spec("llmcompressor"):
    import compressed_nvfp4
    import int4_files
    import plain

    CASES = {**compressed_nvfp4.CASES, **int4_files.CASES, **plain.STEP_CASES}
else:
    import block_formats
    import gguf_files
    import gpt_oss_mxfp4
    import modelopt_nvfp4
    import plain

    CASES = {**plain.CASES, **modelopt_nvfp4.CASES, **gpt_oss_mxfp4.CASES, **gguf_files.CASES, **block_formats.CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help="default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.names or CASES:
        folder = arguments.output / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        facts = CASES[name](folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        check_no_paths(folder)
        write_provenance(folder, name, facts)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name:32s} {size:8d} bytes")


if __name__ == "__main__":
    main()
