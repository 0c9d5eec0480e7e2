#!/usr/bin/env python3
"""Record every step and every request of your own in-process vLLM V1 engine as a Kneeboard capture.

Beside your own code:

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"   # before vllm is imported
    import vllm, kneeboard_capture
    llm = vllm.LLM(model=...)
    with kneeboard_capture.record(llm, "captures/run-1"):
        llm.generate(...)                                # or add_request() and step() of an LLMEngine

Or let this script play a trace on an engine:

    python kneeboard_capture.py --engine engine.json --trace trace.csv --out captures/run-1

README.md says what is recorded. Only the standard library is used; vllm is imported by the script alone.
"""

import argparse
import contextlib
import csv
import gzip
import json
import os
import platform
import random
import sys
import time

FORMAT_TOOL = "kneeboard_capture 1"

_now = time.perf_counter
_cpu = time.thread_time

STEP_COLUMNS = (
    "step,t_start_s,t_end_s,schedule_s,execute_s,execute_cpu_s,update_s,probe_s,step_cpu_s,running_before,"
    "waiting_before,running,waiting,num_seqs,prefill_seqs,decode_seqs,prefill_tokens,decode_tokens,"
    "decode_context_tokens,prefill_token_context,free_blocks,preempted,added_total,work"
).split(",")

REQUEST_COLUMNS = (
    "id,arrival_s,add_start_s,add_end_s,first_scheduled_s,first_token_s,last_token_s,input_tokens,"
    "cached_input_tokens,computed_input_tokens,requested_output_tokens,output_tokens,preemptions,finish_reason,"
    "prefix_group,prefix_tokens,priority,seed"
).split(",")


class _Request:
    """What is known of one request; instants of the perf counter."""

    __slots__ = (
        "arrival", "add_start", "add_end", "input_tokens", "requested", "priority", "tokens", "finish",
        "preemptions", "first_scheduled", "cached", "group", "prefix", "seed",
    )

    def __init__(self, arrival, add_start, add_end, input_tokens, requested, priority):
        self.arrival, self.add_start, self.add_end = arrival, add_start, add_end
        self.input_tokens, self.requested, self.priority = input_tokens, requested, priority
        self.tokens, self.finish, self.preemptions = [], "", 0
        self.first_scheduled, self.cached = None, 0
        self.group, self.prefix, self.seed = -1, 0, 0


class _Step:
    """One scheduled batch. Lists of vLLM's own are kept by reference: they are fresh in every step."""

    __slots__ = (
        "start", "end", "schedule_at", "schedule_s", "execute_s", "execute_cpu", "update_s", "probe_s", "cpu",
        "running_before", "waiting_before", "running", "waiting", "free", "preempted", "added", "scheduled",
        "new", "cached_ids", "cached_computed",
    )

    def __init__(self):
        self.execute_s = self.execute_cpu = self.update_s = self.probe_s = self.cpu = 0.0
        self.end = None


def _inner_core(engine):
    """The engine core in this process, or an error that says how to get one."""
    client = getattr(engine, "engine_core", None)
    core = getattr(client, "engine_core", None)
    if core is None or not hasattr(core, "scheduler"):
        raise RuntimeError(
            "the engine core does not run in this process: set VLLM_ENABLE_V1_MULTIPROCESSING=0 before vllm is "
            "imported, and use vllm.LLM or LLMEngine (not AsyncLLM or a server)"
        )
    return core


class Recorder:
    """Wraps an engine's scheduler, executor and step; takes itself off again in `stop`."""

    def __init__(self, engine):
        self.engine = getattr(engine, "llm_engine", engine)
        self.core = _inner_core(self.engine)
        self.scheduler = self.core.scheduler
        self.executor = self.core.model_executor
        self.requests, self.steps = {}, []
        self.overhead_s = 0.0
        self._by_output = {}
        self._ended = []
        self._current = None
        self._outside = None
        self._preempted = 0
        self._undo = []
        self._dues = {}
        parallel = getattr(getattr(self.core, "vllm_config", None), "parallel_config", None)
        self._workers_apart = getattr(parallel, "world_size", 1) > 1
        pool = getattr(getattr(self.scheduler, "kv_cache_manager", None), "block_pool", None)
        self._free_blocks = getattr(pool, "get_num_free_blocks", lambda: 0)

    # ------------------------------------------------------------------ wraps
    def _wrap(self, owner, name, make):
        original = getattr(owner, name, None)
        if original is None:
            return False
        own = name in getattr(owner, "__dict__", {})
        setattr(owner, name, make(original))
        self._undo.append((owner, name, original if own else None))
        return True

    def start(self):
        """Begins to record. Time 0 of the capture is now."""
        self.t0, self.wall0 = _now(), time.time()
        self._wrap(self.scheduler, "add_request", self._make_scheduler_add)
        self._wrap(self.scheduler, "schedule", self._make_schedule)
        self._wrap(self.scheduler, "update_from_output", self._make_update)
        self._logs_preemptions = self._wrap(self.scheduler, "_preempt_request", self._make_preempt)
        self._wrap(self.executor, "execute_model", self._make_execute)
        self._wrap(self.executor, "sample_tokens", self._make_execute)
        self._wrap(self.engine, "add_request", self._make_add)
        self._wrap(self.engine, "step", self._make_step)
        return self

    def stop(self):
        """Ends the recording and leaves the engine as it was."""
        for owner, name, original in reversed(self._undo):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._undo = []
        return self

    def due(self, request_id, seconds, group=-1, prefix=0, seed=0):
        """When the request that is added next under this id was due, in seconds from the start; and what its
        prompt shares with others, where the driver knows."""
        self._dues[str(request_id)] = (seconds, group, prefix, seed)

    def _make_add(self, original):
        def add_request(request_id, *args, **kwargs):
            self._outside = (str(request_id), _now())
            try:
                return original(request_id, *args, **kwargs)
            finally:
                self._outside = None

        return add_request

    def _make_scheduler_add(self, original):
        def add_request(request, *args, **kwargs):
            result = original(request, *args, **kwargs)
            end = _now()
            outside = self._outside
            start = outside[1] if outside else end
            kept = _Request(
                start, start, end, request.num_prompt_tokens,
                getattr(request, "max_tokens", None), getattr(request, "priority", 0) or 0,
            )
            due = self._dues.pop(outside[0], None) if outside else None
            if due is not None:
                kept.arrival = self.t0 + due[0]
                kept.group, kept.prefix, kept.seed = due[1:]
            self.requests[request.request_id] = kept
            self.overhead_s += _now() - end
            return result

        return add_request

    def _make_preempt(self, original):
        def preempt(request, *args, **kwargs):
            self._preempted += 1
            kept = self.requests.get(request.request_id)
            if kept is not None:
                kept.preemptions += 1
            return original(request, *args, **kwargs)

        return preempt

    def _make_schedule(self, original):
        scheduler = self.scheduler

        def schedule(*args, **kwargs):
            t = _now()
            step = _Step()
            step.running_before, step.waiting_before = len(scheduler.running), len(scheduler.waiting)
            self._preempted = 0
            begun = _now()
            output = original(*args, **kwargs)
            done = _now()
            step.schedule_at, step.schedule_s = begun, done - begun
            step.scheduled = output.num_scheduled_tokens
            step.new = [(r.req_id, r.num_computed_tokens) for r in output.scheduled_new_reqs]
            cached = output.scheduled_cached_reqs
            step.cached_ids, step.cached_computed = cached.req_ids, cached.num_computed_tokens
            step.running, step.waiting = len(scheduler.running), len(scheduler.waiting)
            step.free = self._free_blocks()
            if not self._logs_preemptions:
                self._preempted = len(getattr(output, "preempted_req_ids", None) or ())
            step.preempted, step.added = self._preempted, len(self.requests)
            self._by_output[id(output)] = step
            self._current = step
            self.steps.append(step)
            step.probe_s = (begun - t) + (_now() - done)
            self.overhead_s += step.probe_s
            return output

        return schedule

    def _make_execute(self, original):
        def execute(*args, **kwargs):
            step = self._current
            if step is None:
                return original(*args, **kwargs)
            t, u = _now(), _cpu()
            result = original(*args, **kwargs)
            step.execute_cpu += _cpu() - u
            step.execute_s += _now() - t
            return result

        return execute

    def _make_update(self, original):
        def update_from_output(output, *args, **kwargs):
            step = self._by_output.pop(id(output), None)
            t = _now()
            result = original(output, *args, **kwargs)
            done = _now()
            if step is not None:
                step.update_s += done - t
                if self._workers_apart:
                    # The model runs in other processes: execution is the wait for it.
                    step.execute_s = t - step.schedule_at - step.schedule_s
                outputs = result.values() if isinstance(result, dict) else [result]
                emitted = [
                    (o.request_id, len(o.new_token_ids), o.finish_reason)
                    for group in outputs for o in group.outputs
                ]
                self._ended.append((step, emitted))
                spent = _now() - done
                step.probe_s += spent
                self.overhead_s += spent
            return result

        return update_from_output

    def _make_step(self, original):
        def step(*args, **kwargs):
            before = len(self.steps)
            t, u = _now(), _cpu()
            outputs = original(*args, **kwargs)
            end, cpu = _now(), _cpu() - u
            for made in self.steps[before:]:
                made.start, made.cpu = t, cpu
            for done, emitted in self._ended:
                done.end = end
                for request_id, count, reason in emitted:
                    kept = self.requests.get(request_id)
                    if kept is None:
                        continue
                    if count == 1:
                        kept.tokens.append(end)
                    else:
                        kept.tokens.extend([end] * count)
                    if reason is not None:
                        kept.finish = str(getattr(reason, "name", reason)).lower()
            self._ended.clear()
            self._current = None
            self.overhead_s += _now() - end
            return outputs

        return step

    # ---------------------------------------------------------------- writing
    def _rows(self):
        """Steps that ended, each from the end of the one before at the earliest: with asynchronous scheduling a
        batch is scheduled while its predecessor still runs."""
        rows, before = [], None
        for step in self.steps:
            if step.end is None:
                continue
            start = step.start if before is None else max(step.start, before)
            rows.append((step, start, step.end))
            before = step.end
        return rows

    def write(self, folder, name=None, truncated=False, facts=None):
        """Writes the capture into `folder` and returns its manifest."""
        os.makedirs(folder, exist_ok=True)
        order = sorted(self.requests, key=lambda rid: self.requests[rid].arrival)
        ids = {rid: i for i, rid in enumerate(order)}
        rows = self._rows()
        at = lambda t: "" if t is None else f"{t - self.t0:.6f}"
        with gzip.open(os.path.join(folder, "steps.csv.gz"), "wt", newline="") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerow(STEP_COLUMNS)
            for number, (step, start, end) in enumerate(rows):
                out.writerow(self._step_row(number, step, start, end, ids, at))
        with open(os.path.join(folder, "requests.csv"), "w", newline="") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerow(REQUEST_COLUMNS)
            for rid in order:
                out.writerow(self._request_row(ids[rid], self.requests[rid], at))
        with gzip.open(os.path.join(folder, "tokens.jsonl.gz"), "wt") as f:
            for rid in order:
                times = [round(t - self.t0, 6) for t in self.requests[rid].tokens]
                f.write(json.dumps({"id": ids[rid], "t": times}, separators=(",", ":")) + "\n")
        manifest = self._manifest(name or os.path.basename(os.path.normpath(folder)), rows, truncated)
        manifest.update(facts or {})
        with open(os.path.join(folder, "manifest.json"), "w") as f:
            json.dump(manifest, f, indent=1, sort_keys=True)
            f.write("\n")
        return manifest

    def _step_row(self, number, step, start, end, ids, at):
        computed = dict(step.new)
        computed.update(zip(step.cached_ids, step.cached_computed))
        prefills = decodes = prefill_tokens = decode_tokens = decode_context = prefill_context = 0
        cells = []
        for rid, tokens in step.scheduled.items():
            kept, done = self.requests.get(rid), computed.get(rid, 0)
            if kept is None:
                continue  # added before the recording began
            if kept.first_scheduled is None:
                kept.first_scheduled, kept.cached = step.schedule_at, min(done, kept.input_tokens)
            # A decode feeds one token at or past the prompt's end; all else is prefill, replays included.
            if tokens == 1 and done >= kept.input_tokens:
                decodes += 1
                decode_tokens += 1
                decode_context += done + 1
            else:
                prefills += 1
                prefill_tokens += tokens
                prefill_context += tokens * done + tokens * (tokens + 1) // 2
            cells.append(f"{ids[rid]}:{tokens}:{done}")
        seconds = (step.schedule_s, step.execute_s, step.execute_cpu, step.update_s, step.probe_s, step.cpu)
        return [
            number, at(start), at(end), *(f"{s:.6f}" for s in seconds), step.running_before, step.waiting_before,
            step.running, step.waiting, len(cells), prefills, decodes, prefill_tokens, decode_tokens,
            decode_context, prefill_context, step.free, step.preempted, step.added, " ".join(cells),
        ]

    def _request_row(self, number, r, at):
        produced = len(r.tokens)
        requested = r.requested if r.requested is not None else max(produced, 1)
        first, last = (r.tokens[0], r.tokens[-1]) if r.tokens else (None, None)
        return [
            number, at(r.arrival), at(r.add_start), at(r.add_end), at(r.first_scheduled), at(first), at(last),
            r.input_tokens, r.cached, r.input_tokens - r.cached, max(requested, produced), produced, r.preemptions,
            r.finish, r.group, r.prefix, r.priority, r.seed,
        ]

    def _manifest(self, name, rows, truncated):
        spent = sum(end - start for _, start, end in rows)
        overhead = self.overhead_s + len(rows) * _fixed_cost()
        return {
            "name": name,
            "tool": FORMAT_TOOL,
            "mode": "open",
            "clock": "engine",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall0)),
            "t0_unix_s": self.wall0,
            "duration_s": round(rows[-1][2] - self.t0, 6) if rows else 0.0,
            "vllm": _vllm_version(),
            "engine_effective": _knobs(self.core),
            **_served(self.core),
            "machine": _machine(),
            "steps": len(rows),
            "requests": len(self.requests),
            "tokens_out": sum(len(r.tokens) for r in self.requests.values()),
            "preemptions": sum(step.preempted for step, _, _ in rows),
            "truncated": truncated,
            "capture_overhead": {
                "seconds": round(overhead, 6),
                "share_of_step_time": round(overhead / spent, 6) if spent else None,
            },
        }


# ------------------------------------------------------------------ engine facts
def _knobs(core):
    """The knobs in force, by Kneeboard's names; what this release lacks is left out."""
    config = core.vllm_config
    s, c = config.scheduler_config, config.cache_config
    blocks = getattr(c, "num_gpu_blocks", None)
    found = {
        "max_num_seqs": getattr(s, "max_num_seqs", None),
        "max_num_batched_tokens": getattr(s, "max_num_batched_tokens", None),
        "max_model_len": getattr(getattr(config, "model_config", None), "max_model_len", None),
        "block_size": getattr(core.scheduler, "block_size", None) or getattr(c, "block_size", None),
        "num_gpu_blocks": blocks,
        "usable_blocks": blocks - 1 if blocks else None,
        "enable_prefix_caching": getattr(c, "enable_prefix_caching", None),
        "enable_chunked_prefill": getattr(s, "enable_chunked_prefill", None),
        "long_prefill_token_threshold": getattr(s, "long_prefill_token_threshold", None),
        "policy": getattr(s, "policy", None),
        "async_scheduling": getattr(s, "async_scheduling", None),
        "scheduler_reserve_full_isl": getattr(s, "scheduler_reserve_full_isl", None),
        "watermark": getattr(s, "watermark", None),
        "enforce_eager": getattr(getattr(config, "model_config", None), "enforce_eager", None),
        "gpu_memory_utilization": getattr(c, "gpu_memory_utilization", None),
        "kv_cache_dtype": str(getattr(c, "cache_dtype", "")) or None,
    }
    return {k: v for k, v in found.items() if v is not None}


def _served(core):
    model = getattr(core.vllm_config, "model_config", None)
    parallel = getattr(core.vllm_config, "parallel_config", None)
    found = {
        "model": getattr(model, "model", None),
        "dtype": str(getattr(model, "dtype", "")).replace("torch.", "") or None,
        "tensor_parallel_size": getattr(parallel, "tensor_parallel_size", None),
        "pipeline_parallel_size": getattr(parallel, "pipeline_parallel_size", None),
        "data_parallel_size": getattr(parallel, "data_parallel_size", None),
    }
    quantization = getattr(model, "quantization", None)
    if quantization:
        found["quantization"] = str(quantization)
    return {k: v for k, v in found.items() if v is not None}


def _vllm_version():
    module = sys.modules.get("vllm")
    return str(getattr(module, "__version__", "unknown"))


def _machine():
    found = {"arch": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    if hasattr(os, "sched_getscheduler"):
        names = {0: "OTHER", 1: "FIFO", 2: "RR"}
        found["scheduler_class"] = names.get(os.sched_getscheduler(0), "OTHER")
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_available():
            found["device"] = torch.cuda.get_device_name()
    return found


_FIXED = []


def _fixed_cost():
    """Seconds that the wrappers take in a step beside what they time of themselves: measured once, on nothing."""
    if not _FIXED:
        class Empty:
            def f(self):
                return None

        empty, n = Empty(), 2000
        recorder = object.__new__(Recorder)
        recorder._current = _Step()
        timed = recorder._make_execute(empty.f)
        t = _now()
        for _ in range(n):
            timed()
        instrumented = _now() - t
        t = _now()
        for _ in range(n):
            empty.f()
        # schedule, update and step are wrapped as execute_model and sample_tokens are: five a step.
        _FIXED.append(max(0.0, 5 * (instrumented - (_now() - t)) / n))
    return _FIXED[0]


@contextlib.contextmanager
def record(engine, folder, name=None, facts=None):
    """Records what `engine` (a vllm.LLM or an LLMEngine) does inside, and writes the capture on the way out."""
    recorder = Recorder(engine).start()
    truncated = True
    try:
        yield recorder
        truncated = False
    finally:
        recorder.stop()
        unfinished = bool(recorder.engine.has_unfinished_requests())
        recorder.write(folder, name=name, truncated=truncated or unfinished, facts=facts)


# -------------------------------------------------------------------- playing
def read_trace(path):
    """Rows of a Kneeboard trace (`kneeboard trace synth`), plain or gzipped."""
    opened = gzip.open(path, "rt", newline="") if path.endswith(".gz") else open(path, newline="")
    rows = []
    with opened as f:
        for index, row in enumerate(csv.DictReader(f)):
            arrival = float(row["arrival_s"]) if row.get("arrival_s") else int(row["arrival_ns"]) / 1e9
            whole = lambda key, absent: int(row[key]) if row.get(key) not in (None, "") else absent
            rows.append({
                "arrival_s": arrival,
                "input_tokens": int(row["input_tokens"]),
                "output_tokens": int(row["output_tokens"]),
                "prefix_group": whole("prefix_group", -1),
                "prefix_tokens": whole("prefix_tokens", 0),
                "priority": whole("priority", 0),
                "seed": whole("seed", index),
            })
    return rows


def prompt_of(row, vocabulary):
    """Token ids of a row: requests of a group share their first tokens, all else is its own."""
    stream = lambda key, n: (lambda r: [r.randrange(3, vocabulary) for _ in range(n)])(random.Random(key))
    shared = min(row["prefix_tokens"], row["input_tokens"]) if row["prefix_group"] >= 0 else 0
    return stream(f"g{row['prefix_group']}", shared) + stream(f"r{row['seed']}", row["input_tokens"] - shared)


def play(engine, recorder, rows, make_params, vocabulary, max_wall):
    """Adds each row when it is due and steps the engine until all is done; True when time ran out."""
    prompts = [prompt_of(row, vocabulary) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["arrival_s"], i))
    start, k = recorder.t0, 0
    while k < len(order) or engine.has_unfinished_requests():
        if _now() - start > max_wall:
            return True
        while k < len(order) and rows[order[k]]["arrival_s"] <= _now() - start:
            row = rows[order[k]]
            recorder.due(order[k], row["arrival_s"], row["prefix_group"], row["prefix_tokens"], row["seed"])
            engine.add_request(
                str(order[k]), {"prompt_token_ids": prompts[order[k]]}, make_params(row), priority=row["priority"]
            )
            k += 1
        if engine.has_unfinished_requests():
            engine.step()
        elif k < len(order):
            time.sleep(max(0.0, min(rows[order[k]]["arrival_s"] - (_now() - start), 0.05)))
    return False


def main():
    parser = argparse.ArgumentParser(description="Play a trace on an in-process vLLM engine and capture it.")
    parser.add_argument("--engine", required=True, help="JSON file or text: arguments of vllm.EngineArgs")
    parser.add_argument("--trace", required=True, help="trace CSV, as 'kneeboard trace synth' writes it")
    parser.add_argument("--out", required=True, help="capture folder to write")
    parser.add_argument("--max-wall", type=float, default=600.0, help="seconds after which the run is cut off")
    parser.add_argument("--accelerator", help="profile name of the device, such as h100-sxm")
    parser.add_argument("--warm-up", type=int, default=8, help="requests played before, which are not recorded")
    args = parser.parse_args()

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    text = open(args.engine).read() if os.path.exists(args.engine) else args.engine
    knobs = {"skip_tokenizer_init": True, "disable_log_stats": True, **json.loads(text)}
    from vllm import EngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    def params(row):
        return SamplingParams(
            max_tokens=row["output_tokens"], ignore_eos=True, temperature=0.0, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    engine = LLMEngine.from_engine_args(EngineArgs(**knobs))
    core = _inner_core(engine)
    vocabulary = core.vllm_config.model_config.get_vocab_size()
    rows = read_trace(args.trace)
    warm = [{**row, "arrival_s": 0.0, "prefix_group": -1, "seed": f"w{i}"} for i, row in enumerate(rows[: args.warm_up])]
    for i, row in enumerate(warm):
        engine.add_request(f"warm{i}", {"prompt_token_ids": prompt_of(row, vocabulary)}, params(row))
    while engine.has_unfinished_requests():
        engine.step()
    engine.reset_prefix_cache()

    recorder = Recorder(engine).start()
    truncated = play(engine, recorder, rows, params, vocabulary, args.max_wall)
    recorder.stop()
    facts = {"accelerator": args.accelerator} if args.accelerator else {}
    manifest = recorder.write(args.out, truncated=truncated, facts=facts)
    overhead = manifest["capture_overhead"]
    print(
        f"{args.out}: {manifest['steps']} steps, {manifest['requests']} requests, {manifest['tokens_out']} tokens; "
        f"recording took {overhead['seconds']:.3f} s, {100 * (overhead['share_of_step_time'] or 0):.2f} % of the steps"
    )


if __name__ == "__main__":
    main()
