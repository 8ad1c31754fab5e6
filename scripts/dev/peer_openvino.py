"""A worker of compare_peers.py: OpenVINO GenAI. Reads [ids, n_new] a line, prints the seconds."""

import json
import sys
import time

import numpy
import openvino
import openvino_genai

pipeline = openvino_genai.LLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=int(sys.argv[2]))
for line in sys.stdin:
    ids, n_new = json.loads(line)
    ids = numpy.array([ids], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=n_new, ignore_eos=True, do_sample=False)
    began = time.monotonic()
    pipeline.generate(inputs, config)
    print("seconds", time.monotonic() - began, flush=True)
