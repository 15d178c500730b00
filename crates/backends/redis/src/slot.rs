//! The slot of a key or a resource on a cluster.

use leasehold_core::Resource;

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16384;
const SLOT_COUNT: u16 = 16384;

/// The slot of all keys of a resource. Their hash tag is the key of the resource.
pub(crate) fn slot(resource: &Resource) -> u16 {
    slot_of_tag(resource.key())
}

/// The slot of any key: of its hash tag, which is the text in its first braces if that is not empty, or of
/// the whole key.
pub(crate) fn slot_of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot_of_tag(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

/// The slot of a hash tag.
pub(crate) fn slot_of_tag(tag: &str) -> u16 {
    let step = |sum: u16, &byte: &u8| (sum << 8) ^ TABLE[usize::from((sum >> 8) ^ u16::from(byte))];
    tag.as_bytes().iter().fold(0, step) % SLOT_COUNT
}

/// CRC-16 with the polynomial 0x1021, byte by byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// As `CLUSTER KEYSLOT` returns; the first one is the test value of the specification.
    #[test]
    fn slots_are_as_the_server_computes_them() {
        let table = [("123456789", 0x31C3), ("report/42", 4854), ("acme:report/42", 8168), ("a", 15495)];
        for (tag, slot) in table {
            assert_eq!(slot_of_tag(tag), slot, "{tag}");
        }
        for (key, tag) in
            [("x{a}y{b}", "a"), ("{}a", "{}a"), ("a}b", "a}b"), ("a{b", "a{b"), ("{{a}}", "{a"), ("", "")]
        {
            assert_eq!(slot_of_key(key), slot_of_tag(tag), "{key}");
        }
    }
}
