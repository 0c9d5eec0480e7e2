//! stub
use super::*;
use crate::engine::RequestId;
use crate::units::SimTime;
/// stub
#[derive(Debug, Default)]
pub struct FullRecorder {
    /// r
    pub requests: Vec<(RequestId, RequestRecord)>,
    /// r
    pub replicas: std::collections::BTreeMap<u32, ReplicaRecord>,
}
impl Recorder for FullRecorder {
    type Request = ();
    fn measures(&self, _: SimTime) -> bool {
        true
    }
    fn steps(&mut self, run: &StepRun<'_>) {
        let r = self.replicas.entry(run.replica).or_default();
        r.step_starts.extend_from_slice(run.starts);
        r.step_ends.extend_from_slice(run.ends);
        r.free_blocks.extend_from_slice(run.free_blocks);
        r.running.resize(r.step_ends.len(), run.running);
        r.waiting.resize(r.step_ends.len(), run.waiting);
    }
    fn chunk(&mut self, request: &mut RequestRecord, _: &mut (), c: Chunk) {
        let TokenLog::Segments(segments) = &mut request.tokens else {
            return;
        };
        let step = c.step as u32;
        match segments.last_mut() {
            Some(s) if s.first_step + s.steps == step && s.tokens_per_step == c.tokens => s.steps += 1,
            _ => segments.push(Segment {
                first_step: step,
                steps: 1,
                tokens_per_step: c.tokens,
            }),
        }
    }
    fn further_chunks(&mut self, request: &mut RequestRecord, _: &mut (), steps: u32, _: SimTime) {
        let TokenLog::Segments(segments) = &mut request.tokens else {
            return;
        };
        match segments.last_mut() {
            Some(s) if s.tokens_per_step == 1 => s.steps += steps,
            Some(s) => {
                let first_step = s.first_step + s.steps;
                segments.push(Segment {
                    first_step,
                    steps,
                    tokens_per_step: 1,
                })
            }
            None => {}
        }
    }
    fn ended(&mut self, id: RequestId, request: RequestRecord, (): ()) {
        self.requests.push((id, request));
    }
}
