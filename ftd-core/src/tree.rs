//! One tree over an epoch's members. What needs a word from every node goes up in it, merged on the way; what the root makes
//! of that goes down to everybody. No message goes from all to all.
//!
//! The tree follows from the record alone: the members by id, each the parent of the next [`fan_out`](Terms::fan_out). Only facts
//! that are never taken back within an epoch go up, so a word that is late, doubled or lost does no harm: each says
//! everything that its sender's subtree has to say, is numbered, and is sent again until that number is acknowledged. One
//! that is not acknowledged for a time-out goes through both ends' observers as well ([`Sending::detour`]): the link between
//! two nodes that do not observe each other may be cut without anybody being silent. A parent that is lost is a failure like
//! any other, and the next epoch has another tree.

use crate::ids::{EpochId, Micros, NodeId};
use crate::members::Members;
use crate::policy::Terms;
use std::collections::BTreeMap;

/// What a node says of itself, and, merged, of its subtree.
pub trait Word: Clone + PartialEq + Default {
    /// The word of a subtree: of the node at its top and of the children's subtrees, `None` of one that has not said
    /// anything yet.
    fn merged<'a>(own: &Self, children: impl Iterator<Item = Option<&'a Self>>) -> Self
    where
        Self: 'a;
}

/// Up or down; both are repeated until acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// A subtree's word, to the parent.
    Up,
    /// Everybody's, to the children.
    Down,
}

/// Something to send to a neighbour in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sending<T> {
    /// To whom.
    pub to: NodeId,
    /// Counted by the sender, per epoch and direction.
    pub number: u64,
    /// The straight way does not seem to work.
    pub detour: bool,
    /// What.
    pub what: T,
}

/// What is being sent to one neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Delivery {
    /// The greatest number that was acknowledged.
    acknowledged: u64,
    /// When the number that is under way was sent first, and last.
    first: Option<Micros>,
    last: Micros,
    /// The number that is under way.
    number: u64,
}

impl Delivery {
    /// Whether `number` is to be sent now, and by which way.
    fn due(&mut self, number: u64, now: Micros, period: Micros, timeout: Micros) -> Option<bool> {
        if self.acknowledged >= number {
            return None;
        }
        let fresh = self.number != number;
        if !fresh && now.since(self.last) < period {
            return None;
        }
        self.number = number;
        self.last = now;
        let first = *self.first.get_or_insert(now);
        Some(now.since(first) >= timeout)
    }

    fn acknowledge(&mut self, number: u64) {
        if number > self.acknowledged {
            self.acknowledged = number;
            // A newer one that is under way has just begun to wait.
            self.first = None;
        }
    }

    fn deadline(&self, number: u64, period: Micros) -> Option<Micros> {
        (self.acknowledged < number).then(|| self.last.after(period))
    }
}

#[derive(Debug, Clone)]
struct Child<W> {
    number: u64,
    word: Option<W>,
    delivery: Delivery,
}

/// One node's place in the tree: `W` goes up, `D` comes down.
#[derive(Debug, Clone)]
pub struct Tree<W, D> {
    me: NodeId,
    member: bool,
    period: Micros,
    timeout: Micros,
    epoch: EpochId,
    parent: Option<NodeId>,
    children: BTreeMap<NodeId, Child<W>>,
    own: W,
    /// This subtree's word and its number.
    up: (u64, W),
    upwards: Delivery,
    /// Everybody's, and its number; that of the parent's message it came with.
    down: (u64, D),
    heard_down: u64,
}

impl<W: Word, D: Clone + PartialEq + Default> Tree<W, D> {
    /// Before the first record: a tree of nobody.
    pub fn new(me: NodeId) -> Self {
        Tree {
            me,
            member: false,
            period: Micros(0),
            timeout: Micros(0),
            epoch: EpochId(0),
            parent: None,
            children: BTreeMap::new(),
            own: W::default(),
            up: (0, W::default()),
            upwards: Delivery::default(),
            down: (0, D::default()),
            heard_down: 0,
        }
    }

    /// An epoch begins: nothing that was said in the one before counts in it.
    pub fn adopt(&mut self, epoch: EpochId, members: &Members, terms: Terms) {
        let Terms { period, timeout, fan_out, .. } = terms;
        let place = members.position(self.me);
        let first = |place: u32| place.saturating_mul(fan_out).saturating_add(1);
        let parent = place.filter(|place| *place > 0).and_then(|place| members.at((place - 1) / fan_out));
        let last = |place| first(place).saturating_add(fan_out).min(members.len());
        let children = place.into_iter().flat_map(|place| first(place)..last(place)).filter_map(|at| members.at(at));
        let child = |node| (node, Child { number: 0, word: None, delivery: Delivery::default() });
        let children = children.map(child).collect();
        *self = Tree { epoch, member: place.is_some(), parent, children, period, timeout, ..Tree::new(self.me) };
    }

    /// Whether this node is the tree's root.
    pub fn is_root(&self) -> bool {
        self.parent.is_none() && self.member
    }

    /// The nodes that this one talks to in the tree.
    pub fn neighbours(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.parent.into_iter().chain(self.children.keys().copied())
    }

    /// What this node itself says from now on.
    pub fn say(&mut self, own: W) {
        if self.own != own || self.up.0 == 0 {
            self.own = own;
            self.merge();
        }
    }

    /// What this node itself said last.
    pub fn own(&self) -> &W {
        &self.own
    }

    /// This subtree's word; at the root everybody's.
    pub fn word(&self) -> &W {
        &self.up.1
    }

    /// What everybody was told last.
    pub fn decree(&self) -> &D {
        &self.down.1
    }

    /// The root says this to everybody from now on.
    pub fn decide(&mut self, decree: D) {
        if self.is_root() && (self.down.1 != decree || self.down.0 == 0) {
            self.down = (self.down.0 + 1, decree);
        }
    }

    fn merge(&mut self) {
        let merged = W::merged(&self.own, self.children.values().map(|child| child.word.as_ref()));
        if self.up.1 != merged || self.up.0 == 0 {
            self.up = (self.up.0 + 1, merged);
        }
    }

    /// A child's word came; whether it is to be acknowledged.
    pub fn take_up(&mut self, from: NodeId, epoch: EpochId, number: u64, word: W) -> bool {
        let Some(child) = self.children.get_mut(&from).filter(|_| epoch == self.epoch) else { return false };
        if number > child.number {
            child.number = number;
            child.word = Some(word);
            self.merge();
        }
        true
    }

    /// The parent's word came; whether it is to be acknowledged.
    pub fn take_down(&mut self, from: NodeId, epoch: EpochId, number: u64, decree: D) -> bool {
        if self.parent != Some(from) || epoch != self.epoch {
            return false;
        }
        if number > self.heard_down {
            self.heard_down = number;
            self.down = (self.down.0 + 1, decree);
        }
        true
    }

    /// A neighbour has received what was sent to it.
    pub fn acknowledged(&mut self, from: NodeId, epoch: EpochId, direction: Direction, number: u64) {
        if epoch != self.epoch {
            return;
        }
        match direction {
            Direction::Up if self.parent == Some(from) => self.upwards.acknowledge(number),
            Direction::Down => {
                if let Some(child) = self.children.get_mut(&from) {
                    child.delivery.acknowledge(number);
                }
            }
            Direction::Up => {}
        }
    }

    /// The word to send to the parent now.
    pub fn send_up(&mut self, now: Micros) -> Option<Sending<W>> {
        let (number, word) = &self.up;
        let detour = self.upwards.due(*number, now, self.period, self.timeout)?;
        Some(Sending { to: self.parent?, number: *number, detour, what: word.clone() })
    }

    /// The words to send to children now.
    pub fn send_down(&mut self, now: Micros) -> Vec<Sending<D>> {
        let (number, decree) = self.down.clone();
        let (period, timeout) = (self.period, self.timeout);
        let due = |(node, child): (&NodeId, &mut Child<W>)| {
            let detour = child.delivery.due(number, now, period, timeout)?;
            Some(Sending { to: *node, number, detour, what: decree.clone() })
        };
        self.children.iter_mut().filter_map(due).collect()
    }

    /// The next moment at which something is to be sent again.
    pub fn deadline(&self) -> Option<Micros> {
        let up = self.parent.and_then(|_| self.upwards.deadline(self.up.0, self.period));
        let down = self.children.values().filter_map(|child| child.delivery.deadline(self.down.0, self.period));
        down.chain(up).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How many nodes have spoken, and the least that one of them has said.
    #[derive(Debug, Clone, PartialEq, Default)]
    struct Count(u32, u32);

    impl Word for Count {
        fn merged<'a>(own: &Self, children: impl Iterator<Item = Option<&'a Self>>) -> Self {
            children.fold(own.clone(), |sum, child| match child {
                Some(child) => Count(sum.0 + child.0, sum.1.min(child.1)),
                None => Count(sum.0, 0),
            })
        }
    }

    enum Post {
        Up(u64, Count),
        Down(u64, Count),
        Acknowledge(Direction, u64),
    }

    /// Every node says its number; a part of all messages is lost. Returns the nodes, and how many messages one sent at most.
    fn run(nodes: u32, fan_out: u32, lost: u64) -> (Vec<Tree<Count, Count>>, u32) {
        let members = Members::of((0..nodes).map(|node| NodeId(2 * node + 1)));
        let (terms, epoch) = (Terms { fan_out, ..Terms::default() }, EpochId(3));
        let period = terms.period;
        let mut trees: Vec<Tree<Count, Count>> = members.iter().map(Tree::new).collect();
        trees.iter_mut().for_each(|tree| tree.adopt(epoch, &members, terms));
        trees.iter_mut().for_each(|tree| tree.say(Count(1, 7)));
        let mut sent = vec![0; nodes as usize];
        let at = |node: NodeId| (node.0 as usize - 1) / 2;
        let (mut dice, mut now) = (1u64, Micros(0));
        for _ in 0..400 {
            let mut post = Vec::new();
            for (i, tree) in trees.iter_mut().enumerate() {
                if tree.is_root() {
                    tree.decide(tree.word().clone());
                }
                post.extend(tree.send_up(now).map(|up| (i, up.to, Post::Up(up.number, up.what))));
                post.extend(
                    tree.send_down(now).into_iter().map(|down| (i, down.to, Post::Down(down.number, down.what))),
                );
            }
            while let Some((from, to, message)) = post.pop() {
                sent[from] += 1;
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (dice >> 33) % 100 < lost {
                    continue;
                }
                let (sender, tree) = (NodeId(2 * from as u32 + 1), &mut trees[at(to)]);
                let answer = match message {
                    Post::Up(number, word) => {
                        tree.take_up(sender, epoch, number, word).then_some((Direction::Up, number))
                    }
                    Post::Down(number, decree) => {
                        tree.take_down(sender, epoch, number, decree).then_some((Direction::Down, number))
                    }
                    Post::Acknowledge(direction, number) => {
                        tree.acknowledged(sender, epoch, direction, number);
                        None
                    }
                };
                post.extend(answer.map(|(direction, number)| (at(to), sender, Post::Acknowledge(direction, number))));
            }
            now = now.after(period);
        }
        let most = sent.into_iter().max().unwrap_or(0);
        (trees, most)
    }

    proptest! {
        #[test]
        fn everybody_hears_what_everybody_said(nodes in 1u32..60, fan_out in 1u32..9, lost in 0u64..60) {
            let (trees, _) = run(nodes, fan_out, lost);
            for tree in trees {
                prop_assert_eq!(tree.decree(), &Count(nodes, 7), "{:?}", tree);
                prop_assert_eq!(tree.deadline(), None);
            }
        }
    }

    #[test]
    fn no_node_sends_more_than_a_few_messages_per_child() {
        for nodes in [100, 1000, 5000] {
            let (trees, most) = run(nodes, 16, 0);
            assert!(trees.iter().all(|tree| *tree.decree() == Count(nodes, 7)));
            assert!(most <= 16 * 10, "{most} of {nodes} nodes");
        }
    }

    #[test]
    fn what_is_not_acknowledged_goes_by_a_detour() {
        let members = Members::of([NodeId(0), NodeId(1)]);
        let mut tree: Tree<Count, Count> = Tree::new(NodeId(1));
        tree.adopt(EpochId(1), &members, Terms::default());
        tree.say(Count(1, 1));
        let detours: Vec<bool> =
            (0..8).filter_map(|n| tree.send_up(Micros::from_millis(100 * n))).map(|sending| sending.detour).collect();
        assert_eq!(detours, [false, false, false, false, false, true, true, true]);
        tree.acknowledged(NodeId(0), EpochId(1), Direction::Up, 1);
        assert_eq!(tree.send_up(Micros::from_secs(2)), None);
    }
}
