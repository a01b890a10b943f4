//! Frames: a length of four bytes, the most significant first, and that many bytes of JSON.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::workload::trust::TRUST_BYTES;

/// Largest frame: two piles of certificates at their limit, whose line ends double as JSON, and a policy.
pub(super) const FRAME_LIMIT: usize = 3 * TRUST_BYTES;

/// Room that is made before a frame's bytes have come: a length alone takes no memory.
const FIRST_ROOM: usize = 64 << 10;

/// Writes one frame.
///
/// # Errors
/// `InvalidInput` where the message exceeds [`FRAME_LIMIT`]; what write(2) answered.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - size_of::<u32>();
    let length = u32::try_from(length).ok().filter(|_| length <= FRAME_LIMIT).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("a message of {length} bytes exceeds {FRAME_LIMIT}"))
    })?;
    frame[..size_of::<u32>()].copy_from_slice(&length.to_be_bytes());
    stream.write_all(&frame).await
}

/// Reads one frame; `None` where the peer has closed between two.
///
/// # Errors
/// `InvalidData` for a frame that is too long or no message, `UnexpectedEof` for half of one; what read(2) answered.
pub(super) async fn read<M: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<M>> {
    let mut length = [0; size_of::<u32>()];
    if stream.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[1..]).await?;
    let length = u32::from_be_bytes(length) as usize;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > FRAME_LIMIT {
        return Err(invalid(format!("a frame of {length} bytes exceeds {FRAME_LIMIT}")));
    }
    let mut bytes = Vec::with_capacity(length.min(FIRST_ROOM));
    if stream.take(length as u64).read_to_end(&mut bytes).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| invalid(format!("a frame is no message: {error}")))
}
