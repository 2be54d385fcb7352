#!/usr/bin/env python3
"""What vllm-rs starts as its Python: headless.py -m MODULE ARGS... runs a module as python -m does, with two changes.

The engine core and its worker are forked, where vLLM for the CPU spawns them: they need not import vLLM again. And a LoRA
adapter's load_inplace may be null: vllm-rs sends it so, and vLLM of the same version refuses it.
"""

import inspect
import multiprocessing
import runpy
import sys

from vllm.lora import request

source = inspect.getsource(request).replace("load_inplace: bool =", "load_inplace: bool | None =")
exec(compile(source, request.__file__, "exec"), vars(request))

from vllm.utils import system_utils  # noqa: E402

system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
import vllm.model_executor.models.llama  # noqa: E402, F401
import vllm.v1.worker.cpu_worker  # noqa: E402, F401

module = sys.argv[2]
del sys.argv[:2]
runpy.run_module(module, run_name="__main__", alter_sys=True)
