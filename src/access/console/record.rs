//! What the workload has said of late. Whoever reads it does so at a pace of their own: who is too slow misses something,
//! and is told how much; nobody else waits, and nothing is kept for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::access::ssh::channel::Stream;

/// What is kept: some ten thousand lines, which is more than people look at, and a third of what access may cost in all.
pub const RECENT: usize = 1 << 20;

/// How often the output may have gone from standard output to standard error and back, in what is kept. Each time costs as
/// much as sixteen characters.
const TURNS: usize = 16 << 10;

/// What is read at a time.
const PIECE: usize = 32 << 10;

/// The record of a workload's output.
#[derive(Debug)]
pub struct Record {
    ring: Mutex<Ring>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    /// From which position on it is which stream's, in order; the first at or before the oldest byte that is kept.
    turns: VecDeque<(u64, Stream)>,
    /// Position after the newest byte. The first byte ever had 0.
    end: u64,
    /// Streams that may still say something.
    open: usize,
}

/// The next of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Output.
    Data(Stream, Vec<u8>),
    /// So many bytes have been dropped before they were read.
    Lost(u64),
    /// Nothing more comes.
    End,
}

/// Somebody who reads a record.
#[derive(Debug)]
pub struct Reader {
    record: Arc<Record>,
    at: u64,
    until: Option<u64>,
}

impl Record {
    /// Of so many streams, nothing said yet.
    #[must_use]
    pub fn of(streams: usize) -> Arc<Self> {
        let ring = Ring { bytes: VecDeque::new(), turns: VecDeque::new(), end: 0, open: streams };
        Arc::new(Self { ring: Mutex::new(ring), changed: watch::Sender::new(()) })
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was said.
    pub fn add(&self, stream: Stream, said: &[u8]) {
        self.ring().add(stream, said);
        self.changed.send_replace(());
    }

    /// One of the streams is at its end.
    pub fn end_one(&self) {
        {
            let mut ring = self.ring();
            ring.open = ring.open.saturating_sub(1);
        }
        self.changed.send_replace(());
    }

    /// Reads from the oldest that is kept, and, if it is to `follow`, to the end of all streams; else to what is the newest now.
    #[must_use]
    pub fn read(self: &Arc<Self>, follow: bool) -> Reader {
        let ring = self.ring();
        Reader { record: self.clone(), at: ring.start(), until: (!follow).then_some(ring.end) }
    }
}

impl Ring {
    fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    fn add(&mut self, stream: Stream, said: &[u8]) {
        if said.is_empty() {
            return;
        }
        let kept = &said[said.len().saturating_sub(RECENT)..];
        let excess = (self.bytes.len() + kept.len()).saturating_sub(RECENT);
        self.bytes.drain(..excess);
        // In powers of two, as it would grow by itself, and never beyond.
        let needed = self.bytes.len() + kept.len();
        if needed > self.bytes.capacity() {
            let room = needed.next_power_of_two().min(RECENT);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        if self.turns.back().is_none_or(|&(_, last)| last != stream) {
            if self.turns.len() == TURNS {
                // What was said before the second oldest turn goes.
                self.turns.pop_front();
                let oldest = self.turns.front().map_or(self.end, |&(from, _)| from);
                let drop = oldest.saturating_sub(self.start()) as usize;
                self.bytes.drain(..drop);
            }
            self.turns.push_back((self.end, stream));
        }
        self.bytes.extend(kept);
        self.end += said.len() as u64;
        let start = self.start();
        while self.turns.get(1).is_some_and(|&(from, _)| from <= start) {
            self.turns.pop_front();
        }
    }

    fn next(&self, at: u64, until: Option<u64>) -> Option<Piece> {
        let start = self.start();
        if at < start {
            return Some(Piece::Lost(until.unwrap_or(start).min(start) - at));
        }
        let end = until.unwrap_or(self.end).min(self.end);
        if at >= end {
            return (until.is_some() || self.open == 0).then_some(Piece::End);
        }
        let turn = self.turns.partition_point(|&(from, _)| from <= at);
        let stream = self.turns.get(turn.saturating_sub(1)).map_or(Stream::Data, |&(_, stream)| stream);
        let end = self.turns.get(turn).map_or(end, |&(from, _)| end.min(from)).min(at + PIECE as u64);
        let (from, to) = ((at - start) as usize, (end - start) as usize);
        let (first, second) = self.bytes.as_slices();
        let split = first.len();
        let mut data = Vec::with_capacity(to - from);
        data.extend_from_slice(&first[from.min(split)..to.min(split)]);
        data.extend_from_slice(&second[from.saturating_sub(split)..to.saturating_sub(split)]);
        Some(Piece::Data(stream, data))
    }
}

impl Reader {
    /// The next piece, once there is one. May be cancelled; nothing is lost.
    pub async fn next(&mut self) -> Piece {
        let mut changed = self.record.changed.subscribe();
        loop {
            let next = self.record.ring().next(self.at, self.until);
            if let Some(piece) = next {
                self.at += match &piece {
                    Piece::Data(_, data) => data.len() as u64,
                    Piece::Lost(count) => *count,
                    Piece::End => 0,
                };
                return piece;
            }
            // Its sender lives as long as the record.
            let _ = changed.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that there is, by stream, and how much was lost.
    fn all(reader: &mut Reader) -> (Vec<(Stream, Vec<u8>)>, u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut said, mut lost) = (Vec::<(Stream, Vec<u8>)>::new(), 0);
        runtime.block_on(async {
            loop {
                match reader.next().await {
                    Piece::Data(stream, data) => match said.last_mut() {
                        Some((last, so_far)) if *last == stream => so_far.extend(data),
                        _ => said.push((stream, data)),
                    },
                    Piece::Lost(count) => lost += count,
                    Piece::End => return,
                }
            }
        });
        (said, lost)
    }

    #[test]
    fn what_was_said_is_read_in_order_and_by_stream() {
        let record = Record::of(2);
        for (stream, said) in [(Stream::Data, "a"), (Stream::Data, "b"), (Stream::Error, "e"), (Stream::Data, "c")] {
            record.add(stream, said.as_bytes());
        }
        let expected =
            vec![(Stream::Data, b"ab".to_vec()), (Stream::Error, b"e".to_vec()), (Stream::Data, b"c".to_vec())];
        assert_eq!(all(&mut record.read(false)), (expected.clone(), 0));
        let mut follower = record.read(true);
        record.end_one();
        record.end_one();
        assert_eq!(all(&mut follower), (expected, 0));
    }

    #[test]
    fn the_newest_is_kept_and_the_slow_are_told() {
        let record = Record::of(1);
        let mut slow = record.read(true);
        let said: Vec<u8> = (0..3 * RECENT + 17).map(|index| (index % 251) as u8).collect();
        for piece in said.chunks(1000) {
            record.add(Stream::Data, piece);
        }
        record.end_one();
        let newest = said[said.len() - RECENT..].to_vec();
        assert_eq!(all(&mut record.read(false)), (vec![(Stream::Data, newest.clone())], 0));
        assert_eq!(all(&mut slow), (vec![(Stream::Data, newest)], (2 * RECENT + 17) as u64));
        // One piece that is larger than all that is kept.
        let record = Record::of(1);
        record.add(Stream::Data, &said);
        assert_eq!(all(&mut record.read(false)).0[0].1, said[said.len() - RECENT..]);
    }

    #[test]
    fn it_never_takes_more_memory() {
        let record = Record::of(2);
        for turn in 0..3 * TURNS {
            record.add(if turn % 2 == 0 { Stream::Data } else { Stream::Error }, b"x");
        }
        assert_eq!(record.ring().bytes.len(), TURNS);
        assert_eq!(all(&mut record.read(false)).0.len(), TURNS);
        for _ in 0..RECENT / 100 {
            record.add(Stream::Data, &[b'x'; 777]);
        }
        assert!(record.ring().bytes.capacity() <= RECENT + 1 && record.ring().turns.len() == 1);
    }
}
