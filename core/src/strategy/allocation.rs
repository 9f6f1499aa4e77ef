//! Layers into blocks of limited capacity: neighbours never share a block, and the layers of a block together do not exceed its capacity.
//! For those who plan blocks by hand; strategies give blocks by [`super::Assignment`], where the layers of a block replace each other.

/// Steps after which a search gives up.
const MOST_STEPS: usize = 200_000;

/// For layers of these sizes: the block of each, of `blocks`. Tries the lowest blocks first, and takes back what leads nowhere. None if there is no way,
/// or none was found in many steps.
#[must_use]
pub fn allocate(sizes: &[u64], blocks: usize, capacity: Option<u64>) -> Option<Vec<usize>> {
    let mut taken: Vec<usize> = Vec::with_capacity(sizes.len());
    let mut room = vec![capacity.unwrap_or(u64::MAX); blocks];
    // The block to try next for the layer at hand.
    let mut next = 0;
    for _ in 0..MOST_STEPS {
        let Some(&size) = sizes.get(taken.len()) else { return Some(taken) };
        // Blocks beyond the first empty one are like it.
        let used = taken.iter().max().map_or(0, |block| block + 1);
        let last = taken.last().copied();
        let fits = |block: &usize| {
            Some(*block) != last
                && capacity.is_none_or(|_| room.get(*block).is_some_and(|room| size <= *room))
        };
        if let Some(block) = (next..blocks.min(used + 1)).find(fits) {
            if let Some(room) = room.get_mut(block) {
                *room = room.saturating_sub(size);
            }
            taken.push(block);
            next = 0;
        } else {
            let block = taken.pop()?;
            let size = sizes.get(taken.len()).copied().unwrap_or(0);
            if let Some(room) = room.get_mut(block) {
                *room = room.saturating_add(size);
            }
            next = block + 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_capacity_two_blocks_alternate() {
        assert_eq!(allocate(&[10, 10, 1, 3, 9], 3, None), Some(vec![0, 1, 0, 1, 0]));
        assert_eq!(allocate(&[], 0, None), Some(vec![]));
        assert_eq!(allocate(&[5], 1, None), Some(vec![0]));
        assert_eq!(allocate(&[5, 6], 1, None), None, "neighbours need two");
    }

    #[test]
    fn a_capacity_holds_all_layers_of_a_block_together() {
        assert_eq!(allocate(&[10, 10, 1, 3, 9], 3, Some(12)), None);
        assert_eq!(allocate(&[10, 10, 1, 3, 9], 4, Some(12)), Some(vec![0, 1, 0, 2, 3]));
        assert_eq!(allocate(&[13], 4, Some(12)), None);
    }

    #[test]
    fn what_leads_nowhere_is_taken_back() {
        // The third layer would fit beside the first, but then the last one finds no room.
        assert_eq!(allocate(&[1, 3, 1, 3, 3], 3, Some(4)), Some(vec![0, 1, 2, 0, 2]));
        assert_eq!(allocate(&[4, 4, 4, 4], 3, Some(4)), None);
    }
}
