"""A worker of compare_peers.py: transformers on torch, bf16. Reads [ids, n_new] a line, prints the seconds."""

import json
import sys
import time
from pathlib import Path

import torch
import transformers

torch.set_num_threads(int(sys.argv[2]))
path = Path(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.bfloat16, attn_implementation="sdpa",
    quantization_config=transformers.GgufConfig(dequantize=True)).eval()
for line in sys.stdin:
    ids, n_new = json.loads(line)
    began = time.monotonic()
    with torch.inference_mode():
        model.generate(torch.tensor([ids]), min_new_tokens=n_new, max_new_tokens=n_new, do_sample=False)
    print("seconds", time.monotonic() - began, flush=True)
