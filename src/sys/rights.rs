//! Descriptors beside a message (`SCM_RIGHTS`, unix(7)). nix reads them too, but gives none where some were lost, and so
//! leaves those that came open for ever.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

/// Most descriptors beside one message: two listeners, two netlink sockets, /proc, and room.
pub const LIMIT: usize = 8;

/// Room for the header and [`LIMIT`] numbers, in words, which are aligned as headers are (cmsg(3)).
const ROOM: usize = 6;

/// A message, and what came along.
#[derive(Debug)]
pub struct Received {
    /// Bytes of it that are in the buffer; 0 when the other end is gone.
    pub length: usize,
    /// Whether there was more than fits (`MSG_TRUNC`).
    pub cut: bool,
    /// The descriptors that came, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether others did not (`MSG_CTRUNC`): this process could open no more, or more than [`LIMIT`] were sent.
    pub lost: bool,
}

/// recvmsg(2) into `buffer`.
///
/// # Errors
/// What it answered.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut room = [0_u64; ROOM];
    let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields of a msghdr are integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&room) as _;
    // SAFETY: the message points to a buffer and to room for control messages, of the lengths that it states, and both
    // outlive the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the message in, and its control messages lie in `room`, which is still there; the macros
    // of cmsg(3) stay within the length that it states. What is in a message of rights are descriptors that the kernel has
    // just made for this process, so nobody else owns them.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(this) = header.as_ref() {
            if (this.cmsg_level, this.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // Of another type by each C library.
                #[allow(clippy::unnecessary_cast, reason = "glibc's is a usize, musl's is none")]
                let length = this.cmsg_len as usize;
                let count = length.saturating_sub(libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
                descriptors.extend((0..count).map(|index| OwnedFd::from_raw_fd(numbers.add(index).read_unaligned())));
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    let flag = |flag| message.msg_flags & flag != 0;
    Ok(Received { length, cut: flag(libc::MSG_TRUNC), descriptors, lost: flag(libc::MSG_CTRUNC) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

    #[test]
    fn what_came_is_told_from_what_was_lost() {
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for (sent, came, lost) in [(0, 0, false), (1, 1, false), (LIMIT, LIMIT, false), (LIMIT + 4, LIMIT, true)] {
            let numbers = vec![null.as_raw_fd(); sent];
            let rights = [ControlMessage::ScmRights(&numbers)];
            let rights = if sent == 0 { &[][..] } else { &rights };
            sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"word")], rights, MsgFlags::empty(), None).unwrap();
            let mut buffer = [0; 16];
            let received = receive(other.as_fd(), &mut buffer).unwrap();
            assert_eq!((received.length, received.descriptors.len(), received.lost), (4, came, lost), "{sent}");
            assert!(!received.cut);
            for descriptor in &received.descriptors {
                assert_eq!(nix::unistd::read(descriptor, &mut [0; 1]).unwrap(), 0);
            }
        }
        drop(one);
        assert_eq!(receive(other.as_fd(), &mut [0; 16]).unwrap().length, 0);
    }
}
