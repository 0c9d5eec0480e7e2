//! The steps in which a request got tokens, by runs.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Consecutive steps of one replica that each gave a request the same number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Index of the first step in the replica's [`ReplicaRecord::step_ends`](super::ReplicaRecord::step_ends).
    pub first_step: u32,
    /// How many steps in a row.
    pub steps: u32,
    /// Tokens in each of them.
    pub tokens_per_step: u32,
}

/// Segments of one request, in the order of their steps: a slice that can grow. Nearly every request has one segment,
/// which lies in the record itself.
#[derive(Clone)]
pub struct Segments(Held);

#[derive(Clone)]
enum Held {
    One(Segment),
    Any(Vec<Segment>),
}

impl Segments {
    /// None.
    pub const fn new() -> Self {
        Self(Held::Any(Vec::new()))
    }

    /// One more, after all others.
    pub fn push(&mut self, segment: Segment) {
        match &mut self.0 {
            Held::One(first) => self.0 = Held::Any(vec![*first, segment]),
            Held::Any(segments) if segments.is_empty() => self.0 = Held::One(segment),
            Held::Any(segments) => segments.push(segment),
        }
    }
}

impl Default for Segments {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        match &self.0 {
            Held::One(segment) => std::slice::from_ref(segment),
            Held::Any(segments) => segments,
        }
    }
}

impl DerefMut for Segments {
    fn deref_mut(&mut self) -> &mut [Segment] {
        match &mut self.0 {
            Held::One(segment) => std::slice::from_mut(segment),
            Held::Any(segments) => segments,
        }
    }
}

impl FromIterator<Segment> for Segments {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        let mut all = Self::new();
        segments.into_iter().for_each(|segment| all.push(segment));
        all
    }
}

impl From<Vec<Segment>> for Segments {
    fn from(segments: Vec<Segment>) -> Self {
        segments.into_iter().collect()
    }
}

impl PartialEq for Segments {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Segments {}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_a_vector_of_them_is() {
        let segment = |first_step| Segment {
            first_step,
            steps: 2,
            tokens_per_step: 1,
        };
        let (mut segments, mut vector) = (Segments::new(), Vec::new());
        for n in 0..4 {
            assert_eq!(segments[..], vector[..]);
            assert_eq!(segments, Segments::from(vector.clone()));
            assert_eq!(format!("{segments:?}"), format!("{vector:?}"));
            segments.push(segment(5 * n));
            vector.push(segment(5 * n));
            segments[n as usize].steps += n;
            vector[n as usize].steps += n;
        }
        assert_ne!(segments, Segments::new());
    }

    #[test]
    fn a_single_one_needs_no_memory_of_its_own() {
        assert_eq!(size_of::<Segments>(), size_of::<Vec<Segment>>());
    }
}
