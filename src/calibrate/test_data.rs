//! A tiny capture for tests: two requests, three steps.

pub const MANIFEST: &str = r#"{"name": "run", "mode": "open", "duration_s": 0.2, "vllm": "0.32.0",
"engine_effective": {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "max_model_len": 4096, "block_size": 32,
"num_gpu_blocks": 64, "usable_blocks": 63, "enable_prefix_caching": true, "enable_chunked_prefill": true,
"long_prefill_token_threshold": 0, "policy": "priority", "async_scheduling": false,
"scheduler_reserve_full_isl": true, "watermark": 0.0}, "machine": {"scheduler_class": "RR", "cores": 2},
"steps": 3, "requests": 2, "tokens_out": 5, "preemptions": 0, "truncated": false}
"#;

pub const REQUESTS: &str = "\
id,arrival_s,add_start_s,add_end_s,first_scheduled_s,first_token_s,last_token_s,input_tokens,cached_input_tokens,\
computed_input_tokens,requested_output_tokens,output_tokens,preemptions,finish_reason,prefix_group,prefix_tokens,\
priority,seed
0,0.009000,0.009050,0.009900,0.010010,0.110000,0.200000,3,0,3,3,3,0,length,-1,0,0,1
1,0.050000,0.110100,0.110400,0.110510,0.160000,0.200000,2,0,2,2,2,0,length,7,9,-3,2
";

pub const STEPS: &str = "\
step,t_start_s,t_end_s,schedule_s,execute_s,execute_cpu_s,update_s,probe_s,step_cpu_s,running_before,waiting_before,\
running,waiting,num_seqs,prefill_seqs,decode_seqs,prefill_tokens,decode_tokens,decode_context_tokens,\
prefill_token_context,free_blocks,preempted,added_total,work
0,0.010000,0.110000,0.0001,0.0990,0.0480,0.0001,0.000004,0.0490,0,1,1,0,1,1,0,3,0,0,6,62,0,1,0:3:0
1,0.110500,0.160000,0.0001,0.0480,0.0480,0.0001,0.000004,0.0490,1,1,2,0,2,1,1,2,1,4,3,61,0,2,0:1:3 1:2:0
2,0.160013,0.200000,0.0001,0.0390,0.0390,0.0001,0.000004,0.0390,2,0,2,0,2,0,2,0,2,8,0,61,0,2,0:1:4 1:1:2
";

pub const TOKENS: &str = "{\"id\":0,\"t\":[0.11,0.16,0.2]}\n{\"id\":1,\"t\":[0.16,0.2]}\n";

/// A folder that holds the capture as `set/run`.
pub fn capture() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("set/run");
    std::fs::create_dir_all(&run).unwrap();
    for (name, text) in [
        ("manifest.json", MANIFEST),
        ("requests.csv", REQUESTS),
        ("steps.csv", STEPS),
        ("tokens.jsonl", TOKENS),
    ] {
        std::fs::write(run.join(name), text).unwrap();
    }
    dir
}
