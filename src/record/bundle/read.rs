//! Reading a run folder back. The files may have been edited or cut: everything that a metric relies on is
//! checked here, once.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::{
    RAW_EVENTS_FILE, REPLICAS_FILE, RUN_FILE, ReplicaRow, RequestRow, RunRow, SEGMENTS_FILE, STEPS_FILE,
    SegmentRow, StepRow, TIMES_FILE, TimeRow,
};
use crate::input::{InputError, first_existing, read_text};
use crate::record::{Busy, ReplicaRecord, RequestRecord, RunRecord, Segment, Segments, Status, TokenLog};
use crate::units::{SimDuration, SimTime};

/// More replicas than any cluster has; keeps a wild number from taking all memory.
const MOST_REPLICAS: u32 = 1 << 20;

/// Reads a run folder. Every file may be gzipped (`.csv.gz`); only `raw-events.csv` must be there.
///
/// Without `steps.csv` and the token files, the record has no gauges and no gaps.
///
/// # Errors
/// [`InputError`] when a file cannot be read, a row is not what its heading says, an instant lies before the
/// one it must follow, or a row points at a request, replica or step that does not exist.
pub fn read(folder: &Path) -> Result<RunRecord, InputError> {
    let mut run = RunRecord::default();
    let mut last = SimTime::ZERO;
    read_rows(folder, RAW_EVENTS_FILE, |row: RequestRow| {
        let expected = run.requests.len();
        if row.request_id as usize != expected {
            return Err(format!(
                "request_id {} where {expected} should follow",
                row.request_id
            ));
        }
        let request = request(&row)?;
        last = last
            .max(request.sent_at().unwrap_or_default())
            .max(request.last_token.unwrap_or_default());
        run.requests.push(request);
        Ok(())
    })?;
    if first_existing(folder, &names(RAW_EVENTS_FILE).each_ref().map(String::as_str)).is_none() {
        return Err(InputError::in_file(&folder.join(RAW_EVENTS_FILE), "is missing")
            .allowed("a run folder holds one; give the folder that 'simulate -o' wrote"));
    }
    read_replicas(folder, &mut run)?;
    read_segments(folder, &mut run)?;
    read_times(folder, &mut run)?;
    check_token_counts(folder, &run)?;
    run.end = last.max(
        run.replicas
            .iter()
            .filter_map(|r| r.step_ends.last().copied())
            .max()
            .unwrap_or_default(),
    );
    read_rows(folder, RUN_FILE, |row: RunRow| {
        if row.t_end_ns < run.end {
            return Err(format!(
                "the run ends at {} ns, before its last event",
                row.t_end_ns.as_nanos()
            ));
        }
        run.end = row.t_end_ns;
        Ok(())
    })?;
    Ok(run)
}

fn names(file: &str) -> [String; 2] {
    [file.to_owned(), format!("{file}.gz")]
}

/// Calls `take` with every row of a file, if it exists; its complaints get file and line.
fn read_rows<R: DeserializeOwned>(
    folder: &Path,
    file: &str,
    mut take: impl FnMut(R) -> Result<(), String>,
) -> Result<(), InputError> {
    let names = names(file);
    let Some(path) = first_existing(folder, &names.each_ref().map(String::as_str)) else {
        return Ok(());
    };
    let text = read_text(&path)?;
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let headers = reader
        .headers()
        .cloned()
        .map_err(|e| InputError::in_file(&path, e.to_string()).at("line 1"))?;
    let mut record = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        let complain = |found: String| InputError::in_file(&path, found).at(format!("line {line}"));
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(e) => return Err(complain(e.to_string())),
        }
        let row = record.deserialize(Some(&headers)).map_err(|e| {
            complain(e.to_string()).allowed(format!("the columns of {file} are listed in docs/METRICS.md"))
        })?;
        take(row).map_err(complain)?;
    }
}

/// A request out of its row. The client's instants must be in order. Those of the engine may come from another
/// clock and lie a little off (rule M1), so they are taken as they are; the summary counts such requests.
fn request(row: &RequestRow) -> Result<RequestRecord, String> {
    let ordered = |before: (&str, SimTime), after: (&str, Option<SimTime>)| match after.1 {
        Some(instant) if instant < before.1 => Err(format!(
            "{} is {}, earlier than {} at {}",
            after.0,
            instant.as_nanos(),
            before.0,
            before.1.as_nanos()
        )),
        _ => Ok(()),
    };
    let sent = send_instant(row)?;
    let first = ("t_first_token_ns", row.t_first_token_ns);
    ordered(("t_scheduled_ns", row.t_scheduled_ns), first)?;
    ordered(("t_send_ns", sent), first)?;
    if let Some(at) = row.t_first_token_ns {
        ordered((first.0, at), ("t_last_token_ns", row.t_last_token_ns))?;
    }
    ordered(("t_send_ns", sent), ("t_last_token_ns", row.t_last_token_ns))?;
    if row.status.is_served() && row.t_last_token_ns.is_none() {
        return Err("a completed request without a last token".into());
    }
    if row.cached_input_tokens > row.input_tokens {
        return Err(format!(
            "{} cached of {} input tokens",
            row.cached_input_tokens, row.input_tokens
        ));
    }
    Ok(RequestRecord {
        scheduled: row.t_scheduled_ns,
        sent,
        enqueued: row.t_enqueued_ns,
        first_scheduled: row.t_prefill_start_ns,
        first_token: row.t_first_token_ns,
        last_token: row.t_last_token_ns,
        input_tokens: row.input_tokens,
        cached_tokens: row.cached_input_tokens,
        output_tokens: row.output_tokens,
        preemptions: row.preemptions,
        status: row.status,
        finish_reason: row.finish_reason,
        replica: row.replica,
        priority: row.priority,
        tenant: row.tenant,
        tokens: TokenLog::Segments(Segments::new()),
    })
}

/// When a request was sent. One that never was has no `t_send_ns`, nor anything that follows a send.
fn send_instant(row: &RequestRow) -> Result<SimTime, String> {
    let later = [
        row.t_enqueued_ns,
        row.t_prefill_start_ns,
        row.t_first_token_ns,
        row.t_last_token_ns,
    ];
    match (row.status, row.t_send_ns) {
        (Status::Unsent, None) if later.iter().all(Option::is_none) => Ok(row.t_scheduled_ns),
        (Status::Unsent, _) => Err("an unsent request with an instant after t_scheduled_ns".into()),
        (_, Some(sent)) => Ok(sent),
        (_, None) => Err("t_send_ns is empty, which only that of an unsent request may be".into()),
    }
}

fn read_replicas(folder: &Path, run: &mut RunRecord) -> Result<(), InputError> {
    let replicas = &mut run.replicas;
    read_rows(folder, REPLICAS_FILE, |row: ReplicaRow| {
        if row.replica as usize != replicas.len() || row.replica >= MOST_REPLICAS {
            return Err(format!(
                "replica {} where {} should follow",
                row.replica,
                replicas.len()
            ));
        }
        replicas.push(ReplicaRecord {
            usable_blocks: row.usable_blocks,
            free_blocks_at_end: row.free_blocks_at_end,
            preemptions: row.preemptions,
            busy: Busy {
                prefill: SimDuration(row.busy_prefill_ns),
                decode: SimDuration(row.busy_decode_ns),
            },
            ..ReplicaRecord::default()
        });
        Ok(())
    })?;
    read_rows(folder, STEPS_FILE, |row: StepRow| {
        let known = replicas.len();
        let Some(replica) = replicas.get_mut(row.replica as usize) else {
            return Err(format!(
                "replica {}, but {REPLICAS_FILE} lists {known}",
                row.replica
            ));
        };
        let before = replica.step_ends.last().copied().unwrap_or_default();
        if row.t_end_ns < row.t_start_ns || row.t_end_ns < before {
            return Err(format!(
                "a step that ends at {} ns, before it may",
                row.t_end_ns.as_nanos()
            ));
        }
        replica.step_starts.push(row.t_start_ns);
        replica.step_ends.push(row.t_end_ns);
        replica.running.push(row.running);
        replica.waiting.push(row.waiting);
        replica.free_blocks.push(row.free_blocks);
        Ok(())
    })
}

fn read_segments(folder: &Path, run: &mut RunRecord) -> Result<(), InputError> {
    let RunRecord {
        requests, replicas, ..
    } = run;
    read_rows(folder, SEGMENTS_FILE, |row: SegmentRow| {
        let request = requests.get_mut(row.request_id as usize);
        let request = request.ok_or_else(|| format!("request_id {} does not exist", row.request_id))?;
        let steps = replicas
            .get(request.replica as usize)
            .map_or(0, |r| r.step_ends.len());
        let end = u64::from(row.first_step) + u64::from(row.steps);
        if end > steps as u64 {
            return Err(format!(
                "steps up to {end}, but replica {} made {steps}",
                request.replica
            ));
        }
        if let TokenLog::Segments(segments) = &mut request.tokens {
            let next = segments.last().map_or(0, |s| s.first_step + s.steps);
            if row.first_step < next {
                return Err(format!(
                    "first_step {} overlaps the segment before, up to {next}",
                    row.first_step
                ));
            }
            let SegmentRow {
                first_step,
                steps,
                tokens_per_step,
                ..
            } = row;
            segments.push(Segment {
                first_step,
                steps,
                tokens_per_step,
            });
        }
        Ok(())
    })
}

fn read_times(folder: &Path, run: &mut RunRecord) -> Result<(), InputError> {
    let requests = &mut run.requests;
    read_rows(folder, TIMES_FILE, |row: TimeRow| {
        let request = requests.get_mut(row.request_id as usize);
        let request = request.ok_or_else(|| format!("request_id {} does not exist", row.request_id))?;
        match &mut request.tokens {
            TokenLog::Times(times) if times.last().is_some_and(|&t| row.t_ns < t) => {
                return Err(format!(
                    "token at {} ns, earlier than the one before",
                    row.t_ns.as_nanos()
                ));
            }
            TokenLog::Times(times) => times.push(row.t_ns),
            TokenLog::Segments(segments) if segments.is_empty() => {
                request.tokens = TokenLog::Times(vec![row.t_ns])
            }
            TokenLog::Segments(_) => {
                return Err(format!(
                    "request_id {} has tokens by steps already",
                    row.request_id
                ));
            }
        }
        Ok(())
    })
}

/// A token log that was kept must hold every output token.
fn check_token_counts(folder: &Path, run: &RunRecord) -> Result<(), InputError> {
    for (id, request) in run.requests.iter().enumerate() {
        let logged = match &request.tokens {
            TokenLog::Segments(s) => s
                .iter()
                .map(|s| u64::from(s.steps) * u64::from(s.tokens_per_step))
                .sum(),
            TokenLog::Times(times) => times.len() as u64,
        };
        if logged > 0 && logged != u64::from(request.output_tokens) {
            return Err(InputError::in_file(
                folder,
                format!(
                    "request_id {id} has {} output tokens, but {logged} token times",
                    request.output_tokens
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{expand, random_run, three_requests};
    use crate::metric::{Slo, Summary, SummaryOptions};
    use crate::record::bundle::{BundleParts, write};
    use crate::units::SimDuration;
    use proptest::prelude::*;

    fn round_trip(run: &RunRecord, parts: BundleParts) -> RunRecord {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), run, parts).unwrap();
        read(dir.path()).unwrap()
    }

    #[test]
    fn a_run_comes_back_whole() {
        let run = three_requests();
        assert_eq!(round_trip(&run, BundleParts::default()), run);
    }

    #[test]
    fn without_steps_and_tokens_the_requests_remain() {
        let run = three_requests();
        let back = round_trip(
            &run,
            BundleParts {
                steps: false,
                tokens: false,
            },
        );
        let slo = Slo {
            ttft: Some(SimDuration(16_000_000)),
            ..Slo::default()
        };
        let options = SummaryOptions {
            slo,
            ..SummaryOptions::default()
        };
        let (whole, rest) = (Summary::of(&run, &options), Summary::of(&back, &options));
        assert_eq!(
            (&whole.funnel, &whole.slo, &whole.throughput),
            (&rest.funnel, &rest.slo, &rest.throughput)
        );
        assert_eq!((&whole.latency.tpot, rest.latency.itl.n), (&rest.latency.tpot, 0));
        assert!(
            rest.notes.iter().any(|n| n.contains("token times were not kept")),
            "{:?}",
            rest.notes
        );
    }

    #[test]
    fn bad_rows_name_file_and_line() {
        let cases = [
            (
                RAW_EVENTS_FILE,
                "\n1,2000000,",
                "\n7,2000000,",
                "line 3",
                "request_id 7",
            ),
            (
                RAW_EVENTS_FILE,
                "\n1,2000000,4000000,",
                "\n1,2000000,18000001,",
                "line 3",
                "earlier than t_send_ns at 18000001",
            ),
            (RAW_EVENTS_FILE, "rejected", "refused", "line 5", "refused"),
            (
                RAW_EVENTS_FILE,
                "preemptions",
                "premptions",
                "line 2",
                "premptions",
            ),
            (
                STEPS_FILE,
                "\n0,10000000,18000000,",
                "\n0,10000000,9000000,",
                "line 3",
                "before it may",
            ),
            (
                STEPS_FILE,
                "\n0,10000000,18000000,",
                "\n3,10000000,18000000,",
                "line 3",
                "replica 3",
            ),
            (
                SEGMENTS_FILE,
                "\n2,4,1,1",
                "\n2,4,4000000000,1",
                "line 5",
                "made 5",
            ),
            (SEGMENTS_FILE, "\n2,4,1,1", "\n9,4,1,1", "line 5", "request_id 9"),
            (SEGMENTS_FILE, "\n1,2,2,2", "\n1,1,2,2", "line 4", "overlaps"),
            (
                RUN_FILE,
                "60000000",
                "59999999",
                "line 2",
                "before its last event",
            ),
        ];
        for (file, from, to, line, found) in cases {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &three_requests(), BundleParts::default()).unwrap();
            let path = dir.path().join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{file} lacks {from:?}: {text}");
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(
                [file, line, found].iter().all(|part| error.contains(part)),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_folder_is_not_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("raw-events.csv: is missing"), "{error}");
    }

    proptest! {
        #[test]
        fn any_run_comes_back_whole(run in random_run()) {
            prop_assert_eq!(&round_trip(&run, BundleParts::default()), &run);
            let expanded = expand(&run);
            let back = round_trip(&expanded, BundleParts::default());
            let options = SummaryOptions::default();
            prop_assert_eq!(Summary::of(&back, &options), Summary::of(&expanded, &options));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), file in 0usize..5) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &three_requests(), BundleParts::default()).unwrap();
            let name = [RAW_EVENTS_FILE, STEPS_FILE, SEGMENTS_FILE, REPLICAS_FILE, RUN_FILE][file];
            std::fs::write(dir.path().join(name), bytes).unwrap();
            if let Ok(run) = read(dir.path()) {
                let _ = Summary::of(&run, &SummaryOptions::default());
            }
        }
    }
}
