//! Reading netlink messages: headers, attributes and their values.
//!
//! Requests are encoded by `netlink-packet-route`. Answers are read here, attribute by attribute, and only what is
//! needed: a kernel that is newer than that crate, or an interface kind with odd attributes, must not make the interfaces of
//! a host unreadable. Nothing here panics on any bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{DecodeError, NLA_ALIGNTO, NLA_HEADER_SIZE, NLMSG_ALIGNTO, NlaBuffer, NlasIterator};

pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

/// The length of a netlink message header.
const HEADER: usize = 16;

/// A netlink message in a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram. Ends with an error at the first one that is cut off.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Message<'_>, DecodeError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let message = first(bytes);
        bytes = match &message {
            Ok(message) => {
                bytes.get(align(HEADER + message.payload.len(), NLMSG_ALIGNTO as usize)..).unwrap_or_default()
            }
            Err(_) => &[],
        };
        Some(message)
    })
}

fn first(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let length = u32_at(bytes, 0)? as usize;
    let kind = u16_at(bytes, 4)?;
    let flags = u16_at(bytes, 6)?;
    let sequence = u32_at(bytes, 8)?;
    let payload = bytes.get(HEADER..length).ok_or_else(|| too_short(bytes, length))?;
    Ok(Message { kind, flags, sequence, payload })
}

/// An attribute: its type without flags, and its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

/// The attributes after a fixed header of so many bytes.
pub(crate) fn attributes(payload: &[u8], header: usize) -> impl Iterator<Item = Result<Attribute<'_>, DecodeError>> {
    let bytes = payload.get(align(header, NLA_ALIGNTO)..).unwrap_or_default();
    NlasIterator::new(bytes).map(|nla| nla.map(attribute))
}

fn attribute(nla: NlaBuffer<&[u8]>) -> Attribute<'_> {
    let length = usize::from(nla.length());
    Attribute { kind: nla.kind(), value: nla.into_inner().get(NLA_HEADER_SIZE..length).unwrap_or_default() }
}

impl<'a> Attribute<'a> {
    pub(crate) fn nested(self) -> impl Iterator<Item = Result<Attribute<'a>, DecodeError>> {
        attributes(self.value, 0)
    }

    pub(crate) fn u8(self) -> Result<u8, DecodeError> {
        self.value.first().copied().ok_or_else(|| too_short(self.value, 1))
    }

    pub(crate) fn u16(self) -> Result<u16, DecodeError> {
        u16_at(self.value, 0)
    }

    pub(crate) fn u32(self) -> Result<u32, DecodeError> {
        u32_at(self.value, 0)
    }

    pub(crate) fn u64(self) -> Result<u64, DecodeError> {
        let bytes = self.value.first_chunk().ok_or_else(|| too_short(self.value, 8))?;
        Ok(u64::from_ne_bytes(*bytes))
    }

    pub(crate) fn i32(self) -> Result<i32, DecodeError> {
        self.u32().map(u32::cast_signed)
    }

    /// A text up to its first NUL. Interface names may be any bytes; those that are not UTF-8 are replaced.
    pub(crate) fn text(self) -> String {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }

    pub(crate) fn ip(self) -> Result<IpAddr, DecodeError> {
        if let Ok(octets) = <[u8; 4]>::try_from(self.value) {
            return Ok(Ipv4Addr::from(octets).into());
        }
        match <[u8; 16]>::try_from(self.value) {
            Ok(octets) => Ok(Ipv6Addr::from(octets).into()),
            Err(_) => Err(DecodeError::invalid_ip_address(self.value.len())),
        }
    }
}

pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Result<u8, DecodeError> {
    bytes.get(offset).copied().ok_or_else(|| too_short(bytes, offset + 1))
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, DecodeError> {
    let octets = bytes.get(offset..).and_then(<[u8]>::first_chunk).ok_or_else(|| too_short(bytes, offset + 2))?;
    Ok(u16::from_ne_bytes(*octets))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, DecodeError> {
    let octets = bytes.get(offset..).and_then(<[u8]>::first_chunk).ok_or_else(|| too_short(bytes, offset + 4))?;
    Ok(u32::from_ne_bytes(*octets))
}

fn too_short(bytes: &[u8], expected: usize) -> DecodeError {
    format!("{} bytes instead of {expected}", bytes.len()).into()
}

pub(crate) fn align(length: usize, to: usize) -> usize {
    length.div_ceil(to) * to
}
