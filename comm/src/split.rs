//! How a group is split by color and key.

use std::collections::BTreeMap;

/// What one rank asks for: the color of its new group, `None` for no group, and the key that orders the ranks within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) color: Option<usize>,
    pub(crate) key: usize,
}

/// The ranks of each color, by key and then by rank; `asked` is in the order of the ranks.
pub(crate) fn by_color(asked: impl IntoIterator<Item = Asked>) -> BTreeMap<usize, Vec<usize>> {
    let mut numbered: Vec<(usize, Asked)> = asked.into_iter().enumerate().collect();
    // A stable sort keeps ranks with equal keys in order.
    numbered.sort_by_key(|(_, asked)| asked.key);
    let mut colors: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, Asked { color, .. }) in numbered {
        if let Some(color) = color {
            colors.entry(color).or_default().push(rank);
        }
    }
    colors
}
