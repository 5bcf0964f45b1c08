//! Reachability between the commands of a plan, in near linear time and memory.

/// Children of a tree node, or entries of a leaf.
const FANOUT: usize = 16;
const BITS: u32 = FANOUT.trailing_zeros();
/// Tree nodes that joining clocks may visit: in all, and for each command.
const VISITS: usize = 1 << 20;
const VISITS_EACH: usize = 32;

/// Which of the commands added so far come before which. Commands are added in an order that the edges allow.
///
/// Commands are split into chains, in which each command comes before the next. The clock of a command holds, for each chain, the
/// position of the last command that comes before it, so a query is one lookup. Clocks are radix trees that share nodes, so that a
/// command takes memory only for what joining its needs changes.
///
/// Joins have a budget linear in the commands. Once it is spent, or memory is, a clock may lack entries: [`has`](Self::has) is then
/// false for some commands that come before, never true for one that does not.
#[derive(Default)]
pub(super) struct Reach {
    rows: Vec<Row>,
    chains: Vec<Chain>,
    /// Inner nodes hold indices of nodes, leaves hold positions. Node 0 is the empty tree.
    nodes: Vec<[u32; FANOUT]>,
    visits: usize,
    /// The command that is being added: its latest need, and what its other needs add to the clock of that.
    head: Option<usize>,
    rest: Clock,
    /// Needs of the command that is being added that were the last of their chains.
    tails: Vec<u32>,
    /// Nodes from here on belong to the command that is being added, and may be changed.
    fresh: usize,
}

struct Row {
    chain: u32,
    /// In its chain, from 1 on.
    position: u32,
    /// Positions in other chains.
    clock: Clock,
}

#[derive(Clone, Copy, Default)]
struct Clock {
    root: u32,
    /// Levels of the tree.
    height: u32,
}

/// End of a list of chains.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Chain {
    length: u32,
    /// A list of chains whose last commands come before one of this chain, so that a later command can go on with them.
    ended: u32,
    /// The next chain in the list that this one is in, if it is in one.
    next: u32,
    is_listed: bool,
}

impl Reach {
    pub(super) fn new(commands: usize) -> Reach {
        Reach {
            rows: Vec::with_capacity(commands),
            nodes: vec![[0; FANOUT]],
            visits: VISITS + VISITS_EACH * commands,
            fresh: 1,
            ..Reach::default()
        }
    }

    /// Whether `earlier` comes before `later`, which may be the command that is being added.
    pub(super) fn has(&self, earlier: usize, later: usize) -> bool {
        let (Some(a), true) = (self.rows.get(earlier), earlier < later) else { return false };
        match self.rows.get(later) {
            Some(b) if a.chain == b.chain => a.position < b.position,
            Some(b) => self.position(b.clock, a.chain) >= a.position,
            None => {
                self.head.is_some_and(|head| earlier == head || self.has(earlier, head))
                    || self.position(self.rest, a.chain) >= a.position
            }
        }
    }

    /// The command that is being added comes after `need`.
    pub(super) fn add(&mut self, need: usize) {
        let need = match self.head {
            None => return self.head = Some(need),
            Some(head) if head < need => {
                self.head = Some(need);
                head
            }
            Some(_) => need,
        };
        let Row { chain, position, clock } = self.rows[need];
        if position == self.chains[chain as usize].length {
            self.tails.push(chain);
        }
        self.rest = self.join(self.rest, clock);
        self.rest = self.insert(self.rest, chain, position);
    }

    /// Ends the command that is being added, and begins the next.
    pub(super) fn push(&mut self) {
        let (head, mut clock) = (self.head.take(), std::mem::take(&mut self.rest));
        let mut own = None;
        if let Some(head) = head {
            let Row { chain, position, clock: of_head } = self.rows[head];
            clock = self.join(of_head, clock);
            if position == self.chains[chain as usize].length {
                own = Some(chain);
            } else {
                clock = self.insert(clock, chain, position);
                let ended = self.chains[chain as usize].ended;
                // Its last command comes before this one.
                if ended != NONE && self.position(clock, ended) == self.chains[ended as usize].length {
                    self.chains[chain as usize].ended = self.chains[ended as usize].next;
                    self.chains[ended as usize].is_listed = false;
                    own = Some(ended);
                }
            }
        }
        let own = own.or_else(|| self.tails.pop()).unwrap_or_else(|| {
            self.chains.push(Chain { length: 0, ended: NONE, next: NONE, is_listed: false });
            self.chains.len() as u32 - 1
        });
        while let Some(tail) = self.tails.pop() {
            if tail != own && !std::mem::replace(&mut self.chains[tail as usize].is_listed, true) {
                self.chains[tail as usize].next =
                    std::mem::replace(&mut self.chains[own as usize].ended, tail);
            }
        }
        let chain = &mut self.chains[own as usize];
        chain.length += 1;
        self.rows.push(Row { chain: own, position: chain.length, clock });
        self.fresh = self.nodes.len();
    }

    /// The position that a clock has for a chain, 0 for none.
    fn position(&self, Clock { root, height }: Clock, chain: u32) -> u32 {
        if chain >> (BITS * height).min(31) > 0 {
            return 0;
        }
        (0..height).rev().fold(root, |node, level| self.nodes[node as usize][slot(chain, level)])
    }

    /// A tree of so many levels.
    fn raise(&mut self, mut clock: Clock, height: u32) -> Option<Clock> {
        while clock.height < height {
            clock.height += 1;
            if clock.root > 0 {
                let mut node = [0; FANOUT];
                node[0] = clock.root;
                clock.root = self.node(node)?;
            }
        }
        Some(clock)
    }

    /// Both clocks, or only the first if that would take too much.
    fn join(&mut self, one: Clock, other: Clock) -> Clock {
        if other.root == 0 || one.root == other.root {
            return one;
        }
        if one.root == 0 {
            return other;
        }
        let height = one.height.max(other.height);
        let joined = (|| {
            let (a, b) = (self.raise(one, height)?, self.raise(other, height)?);
            Some(Clock { root: self.join_nodes(a.root, b.root, height)?, height })
        })();
        joined.unwrap_or(one)
    }

    fn join_nodes(&mut self, a: u32, b: u32, height: u32) -> Option<u32> {
        if a == b || b == 0 {
            return Some(a);
        }
        if a == 0 {
            return Some(b);
        }
        self.visits = self.visits.checked_sub(1)?;
        let (own, other) = (self.nodes[a as usize], self.nodes[b as usize]);
        let mut joined = own;
        for (to, (&x, &y)) in joined.iter_mut().zip(own.iter().zip(&other)) {
            *to = if height == 1 { x.max(y) } else { self.join_nodes(x, y, height - 1)? };
        }
        self.changed(a, own, b, other, joined)
    }

    /// The node that holds `joined`, which may be one of the two that there are.
    fn changed(
        &mut self,
        a: u32,
        own: [u32; FANOUT],
        b: u32,
        other: [u32; FANOUT],
        joined: [u32; FANOUT],
    ) -> Option<u32> {
        if joined == own {
            Some(a)
        } else if joined == other {
            Some(b)
        } else if a as usize >= self.fresh {
            self.nodes[a as usize] = joined;
            Some(a)
        } else {
            self.node(joined)
        }
    }

    /// The clock with an entry for `chain` of at least `position`; unchanged if that would take too much.
    fn insert(&mut self, clock: Clock, chain: u32, position: u32) -> Clock {
        if self.position(clock, chain) >= position {
            return clock;
        }
        let mut height = clock.height.max(1);
        while chain >> (BITS * height).min(31) > 0 {
            height += 1;
        }
        let inserted = (|| {
            let raised = self.raise(clock, height)?;
            Some(Clock { root: self.insert_node(raised.root, height, chain, position)?, height })
        })();
        inserted.unwrap_or(clock)
    }

    fn insert_node(&mut self, node: u32, height: u32, chain: u32, position: u32) -> Option<u32> {
        self.visits = self.visits.checked_sub(1)?;
        let (own, at) = (self.nodes[node as usize], slot(chain, height - 1));
        let mut changed = own;
        changed[at] = match height {
            1 => position,
            _ => self.insert_node(own[at], height - 1, chain, position)?,
        };
        if node > 0 { self.changed(node, own, 0, [0; FANOUT], changed) } else { self.node(changed) }
    }

    fn node(&mut self, node: [u32; FANOUT]) -> Option<u32> {
        self.visits = self.visits.checked_sub(3)?;
        self.nodes.try_reserve(1).ok()?;
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).ok()
    }
}

/// Where in a node of this level, from 0 for leaves, a chain is.
fn slot(chain: u32, level: u32) -> usize {
    (chain >> (BITS * level)) as usize % FANOUT
}

#[cfg(test)]
mod tests;
