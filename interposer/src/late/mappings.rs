//! The process's memory as the kernel lists it: what may be read, and what protection a page has that is about to be written.

use std::ops::Range;

/// One run of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<usize>,
    /// `PROT_*` bits.
    pub(super) protection: i32,
}

impl Mapping {
    fn may(&self, bit: i32) -> bool {
        self.protection & bit != 0
    }

    pub(super) fn is_readable(&self) -> bool {
        self.may(libc::PROT_READ)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.may(libc::PROT_WRITE)
    }
}

/// All mappings, by address.
#[derive(Debug)]
pub(super) struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Asks the kernel.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub(super) fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string("/proc/self/maps")?))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(mapping).collect())
    }

    /// The parts of the mappings that lie in `range`.
    pub(super) fn within(&self, range: &Range<usize>) -> impl Iterator<Item = Mapping> {
        let range = range.clone();
        self.0.iter().filter_map(move |mapping| {
            let part = mapping.range.start.max(range.start)..mapping.range.end.min(range.end);
            (!part.is_empty()).then_some(Mapping { range: part, protection: mapping.protection })
        })
    }
}

/// One line: `7f0000000000-7f0000001000 r--p 00000000 ...`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let letters = fields.next()?;
    let bits = [('r', libc::PROT_READ), ('w', libc::PROT_WRITE), ('x', libc::PROT_EXEC)];
    let protection = bits.iter().filter(|(letter, _)| letters.contains(*letter)).map(|(_, bit)| bit).sum();
    Some(Mapping { range: start..end, protection })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_kernel_is_read_with_its_protections() {
        let text = "1000-3000 r--p 00000000 08:02 135522 /usr/lib/a b.so\n3000-4000 rw-p 00000000 00:00 0\n8000-9000 ---p 0 0 0\nnonsense\n";
        let read = Mappings::parse(text);
        let inside: Vec<Mapping> = read.within(&(0x2000..0x9000)).collect();
        let expected = [
            Mapping { range: 0x2000..0x3000, protection: libc::PROT_READ },
            Mapping { range: 0x3000..0x4000, protection: libc::PROT_READ | libc::PROT_WRITE },
            Mapping { range: 0x8000..0x9000, protection: 0 },
        ];
        assert_eq!(inside, expected);
        assert!(!inside[2].is_readable() && inside[1].is_writable() && !inside[0].is_writable());
    }

    #[test]
    fn our_own_data_is_listed_as_writable() {
        static WORD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(7);
        let address = std::ptr::from_ref(&WORD).addr();
        let read = Mappings::read().expect("the kernel lists our memory");
        let found: Vec<Mapping> = read.within(&(address..address + 8)).collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].is_readable() && found[0].is_writable());
    }
}
