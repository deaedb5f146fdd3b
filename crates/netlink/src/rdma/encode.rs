//! Encodes the attributes of RDMA requests, for which there is no crate.

/// The attributes of a request.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds a number.
    pub(super) fn u32(mut self, kind: u16, value: u32) -> Self {
        const LENGTH: u16 = 8;
        self.0.extend(LENGTH.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}
