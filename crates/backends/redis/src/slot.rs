//! In which of a cluster's slots a resource is.

use leasehold_core::Resource;

/// How many slots there are.
pub(crate) const SLOTS: usize = 16384;

/// The slot of all keys of a resource: of what stands in their braces.
pub(crate) fn slot(resource: &Resource) -> u16 {
    slot_of(resource.key())
}

/// The slot of any key: of what stands in its first braces, if there is something.
pub(crate) fn slot_of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot_of(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

/// The slot of a hash tag.
pub(crate) fn slot_of(tag: &str) -> u16 {
    let step = |sum: u16, &byte: &u8| (sum << 8) ^ TABLE[usize::from((sum >> 8) ^ u16::from(byte))];
    tag.as_bytes().iter().fold(0, step) % 16384
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

    /// As `CLUSTER KEYSLOT` says; the first is the test value of the specification.
    #[test]
    fn slots_are_those_of_the_server() {
        let table = [("123456789", 0x31C3), ("report/42", 4854), ("acme:report/42", 8168), ("a", 15495)];
        for (tag, slot) in table {
            assert_eq!(slot_of(tag), slot, "{tag}");
        }
        for (key, tag) in
            [("x{a}y{b}", "a"), ("{}a", "{}a"), ("a}b", "a}b"), ("a{b", "a{b"), ("{{a}}", "{a"), ("", "")]
        {
            assert_eq!(slot_of_key(key), slot_of(tag), "{key}");
        }
    }
}
