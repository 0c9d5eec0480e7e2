"""Checks the recorder on an engine of the same shape as vLLM's, without vLLM: standard library only.

    python3 -m unittest discover -s tools/capture
    python3 tools/capture/test_kneeboard_capture.py DIR    # write the stub's capture, for other checks
"""

import csv
import gzip
import json
import os
import sys
import tempfile
import unittest
from types import SimpleNamespace as NS

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kneeboard_capture as capture  # noqa: E402


class Request:
    def __init__(self, request_id, prompt, max_tokens, priority):
        self.request_id, self.num_prompt_tokens = request_id, len(prompt)
        self.max_tokens, self.priority = max_tokens, priority
        self.num_computed_tokens = self.made = 0


class Scheduler:
    """Continuous batching with chunked prefill in two dozen lines; one preemption when asked for."""

    def __init__(self, budget, preempt_at):
        self.waiting, self.running, self.requests = [], [], {}
        self.budget, self.block_size, self.calls, self.preempt_at = budget, 16, 0, preempt_at
        self.kv_cache_manager = NS(block_pool=NS(get_num_free_blocks=lambda: 99 - len(self.running)))

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _preempt_request(self, request, at):
        request.num_computed_tokens = 0
        self.running.remove(request)
        self.waiting.insert(0, request)

    def schedule(self):
        self.calls += 1
        # The first call from then on that finds anything running: how much runs depends on the machine's speed.
        if self.preempt_at and self.calls >= self.preempt_at and self.running:
            self.preempt_at = None
            self._preempt_request(self.running[-1], 0.0)
        scheduled, budget, new, cached = {}, self.budget, [], []
        while self.waiting and len(self.running) < 8:
            self.running.append(self.waiting.pop(0))
        for r in self.running:
            n = min(r.num_prompt_tokens + r.made - r.num_computed_tokens, budget)
            if n > 0:
                scheduled[r.request_id] = n
                budget -= n
                (cached if r.num_computed_tokens else new).append((r.request_id, r.num_computed_tokens))
        for rid, n in scheduled.items():
            self.requests[rid].num_computed_tokens += n
        return NS(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[NS(req_id=r, num_computed_tokens=c) for r, c in new],
            scheduled_cached_reqs=NS(req_ids=[r for r, _ in cached], num_computed_tokens=[c for _, c in cached]),
        )

    def update_from_output(self, output, _):
        outputs = []
        for rid in output.num_scheduled_tokens:
            r = self.requests[rid]
            if r.num_computed_tokens >= r.num_prompt_tokens + r.made:
                r.made += 1
                done = r.made >= r.max_tokens
                outputs.append(NS(request_id=rid, new_token_ids=[1], finish_reason=NS(name="LENGTH") if done else None))
                if done:
                    self.running.remove(r)
                    del self.requests[rid]
        return {0: NS(outputs=outputs)}


class Engine:
    def __init__(self, work=2000, preempt_at=None):
        scheduler = Scheduler(64, preempt_at)
        spin = lambda *_: sum(range(work))
        config = NS(
            scheduler_config=NS(max_num_seqs=8, max_num_batched_tokens=64, enable_chunked_prefill=True, policy="fcfs",
                                long_prefill_token_threshold=0, async_scheduling=False),
            cache_config=NS(num_gpu_blocks=100, enable_prefix_caching=False, cache_dtype="auto"),
            model_config=NS(model="stub", max_model_len=512, dtype="torch.bfloat16"),
            parallel_config=NS(world_size=1, tensor_parallel_size=1),
        )
        core = NS(scheduler=scheduler, model_executor=NS(execute_model=spin, sample_tokens=spin), vllm_config=config)
        self.core, self.engine_core = core, NS(engine_core=core)

    def add_request(self, request_id, prompt, params, priority=0):
        self.core.scheduler.add_request(Request(request_id, prompt["prompt_token_ids"], params, priority))

    def has_unfinished_requests(self):
        return bool(self.core.scheduler.requests)

    def step(self):
        output = self.core.scheduler.schedule()
        self.core.model_executor.execute_model(output)
        self.core.scheduler.update_from_output(output, self.core.model_executor.sample_tokens(output))
        return []


ROWS = [
    {"arrival_s": 0.001 * i, "input_tokens": 10 + 17 * i, "output_tokens": 3 + i % 4, "prefix_group": i % 2 - 1,
     "prefix_tokens": 4, "priority": 0, "seed": i}
    for i in range(12)
]


def write_stub_capture(folder, **options):
    engine = Engine(**options)
    recorder = capture.Recorder(engine).start()
    truncated = capture.play(engine, recorder, ROWS, lambda row: row["output_tokens"], 1000, 60)
    recorder.stop()
    # The stub stands for a release whose rules are modelled.
    return engine, recorder.write(folder, truncated=truncated, facts={"vllm": "0.32.0"})


class RecorderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(lambda: __import__("shutil").rmtree(self.folder))

    def rows(self, name):
        opened = gzip.open if name.endswith(".gz") else open
        with opened(os.path.join(self.folder, name), "rt", newline="") as f:
            return list(csv.DictReader(f))

    def test_every_step_and_token_is_there(self):
        _, manifest = write_stub_capture(self.folder)
        steps, requests = self.rows("steps.csv.gz"), self.rows("requests.csv")
        self.assertEqual(tuple(steps[0]), tuple(capture.STEP_COLUMNS))
        self.assertEqual(tuple(requests[0]), tuple(capture.REQUEST_COLUMNS))
        self.assertEqual((len(steps), len(requests)), (manifest["steps"], len(ROWS)))
        for number, step in enumerate(steps):
            self.assertEqual(int(step["step"]), number)
            work = [tuple(map(int, cell.split(":"))) for cell in step["work"].split()]
            self.assertEqual(sum(n for _, n, _ in work), int(step["prefill_tokens"]) + int(step["decode_tokens"]))
            self.assertLessEqual(sum(n for _, n, _ in work), 64)
            self.assertLess(float(step["execute_s"]), float(step["t_end_s"]) - float(step["t_start_s"]) + 1e-6)
        for row, asked in zip(requests, ROWS):
            self.assertEqual(int(row["input_tokens"]), asked["input_tokens"])
            self.assertEqual((int(row["output_tokens"]), row["finish_reason"]), (asked["output_tokens"], "length"))
            self.assertAlmostEqual(float(row["arrival_s"]), asked["arrival_s"])
            self.assertLessEqual(float(row["add_end_s"]), float(row["first_scheduled_s"]) + 1e-6)
        with gzip.open(os.path.join(self.folder, "tokens.jsonl.gz"), "rt") as f:
            times = [json.loads(line)["t"] for line in f]
        self.assertEqual([len(t) for t in times], [r["output_tokens"] for r in ROWS])
        self.assertEqual(manifest["tokens_out"], sum(r["output_tokens"] for r in ROWS))
        self.assertEqual(manifest["engine_effective"]["usable_blocks"], 99)

    def test_a_preemption_is_counted_once_by_step_and_by_request(self):
        _, manifest = write_stub_capture(self.folder, preempt_at=6)
        self.assertEqual(manifest["preemptions"], 1)
        self.assertEqual(sum(int(s["preempted"]) for s in self.rows("steps.csv.gz")), 1)
        self.assertEqual(sum(int(r["preemptions"]) for r in self.rows("requests.csv")), 1)

    def test_the_engine_is_left_as_it_was(self):
        engine, _ = write_stub_capture(self.folder)
        for owner in (engine, engine.core.scheduler):
            for name in ("step", "schedule", "update_from_output", "add_request", "_preempt_request"):
                self.assertNotIn(name, vars(owner))
        self.assertIn("<lambda>", engine.core.model_executor.execute_model.__name__)

    def test_the_cost_of_recording_is_in_the_manifest(self):
        _, manifest = write_stub_capture(self.folder, work=400_000)
        overhead = manifest["capture_overhead"]
        self.assertGreater(overhead["seconds"], 0)
        # Steps of about 10 ms here; the wrappers take tens of microseconds.
        self.assertLess(overhead["share_of_step_time"], 0.02)

    def test_a_run_that_is_cut_off_says_so(self):
        engine = Engine()
        with self.assertRaises(KeyboardInterrupt):
            with capture.record(engine, self.folder):
                engine.add_request("a", {"prompt_token_ids": [5] * 9}, 50)
                engine.step()
                raise KeyboardInterrupt
        with open(os.path.join(self.folder, "manifest.json")) as f:
            manifest = json.load(f)
        self.assertTrue(manifest["truncated"])
        self.assertEqual(manifest["tokens_out"], 1)

    def test_an_engine_in_another_process_is_refused_with_a_word(self):
        with self.assertRaisesRegex(RuntimeError, "VLLM_ENABLE_V1_MULTIPROCESSING=0"):
            capture.Recorder(NS(engine_core=NS()))

    def test_traces_are_read(self):
        path = os.path.join(self.folder, "t.csv")
        with open(path, "w") as f:
            f.write("arrival_ns,input_tokens,output_tokens,prefix_group,prefix_tokens,session,priority,eos_at\n"
                    "1500000000,7,2,3,5,0,1,\n")
        row = capture.read_trace(path)[0]
        self.assertEqual((row["arrival_s"], row["prefix_group"], row["priority"], row["seed"]), (1.5, 3, 1, 0))
        a, b = capture.prompt_of(row, 100), capture.prompt_of({**row, "seed": 9}, 100)
        self.assertEqual(a[:5], b[:5])
        self.assertNotEqual(a[5:], b[5:])


if __name__ == "__main__":
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        write_stub_capture(sys.argv[1])
    else:
        unittest.main()
