//! Where things are: zones, nodes in zones, and the ranks of groups on nodes.

use std::collections::BTreeMap;

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name; faults are drawn by it, so it must be the node's own.
    pub name: String,
    /// The number of its zone.
    pub zone: u32,
}

/// A group of ranks that serves as one, and fails as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The group's name; faults are drawn by it, so it must be the group's own.
    pub name: String,
    /// The node of each rank, by rank. A rank is one device.
    pub ranks: Vec<u32>,
}

/// Zones, nodes and groups, each numbered from 0 in the order given. Append only: numbers stay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Names of zones.
    pub zones: Vec<String>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Groups.
    pub groups: Vec<Placement>,
}

/// Why zones, nodes and groups do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A node in no zone.
    #[error("node {node} is in zone number {zone}, but {}", super::fault::there_are(*.zones, "zone"))]
    NoSuchZone {
        /// The node's name.
        node: String,
        /// The zone's number.
        zone: u32,
        /// How many zones there are.
        zones: usize,
    },
    /// A rank on no node.
    #[error(
        "rank {rank} of group {group} is on node number {node}, but {}",
        super::fault::there_are(*.nodes, "node")
    )]
    NoSuchNode {
        /// The group's name.
        group: String,
        /// The rank.
        rank: usize,
        /// The node's number.
        node: u32,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A group of nobody.
    #[error("group {group} has no ranks; give it at least one")]
    NoRanks {
        /// The group's name.
        group: String,
    },
    /// Two zones, nodes or groups of one name.
    #[error("{what}s {first} and {second} are both called {name}; give each its own name")]
    SameName {
        /// zone, node or group.
        what: &'static str,
        /// The number of the one.
        first: usize,
        /// The number of the other.
        second: usize,
        /// What both are called.
        name: String,
    },
}

impl Topology {
    /// Whether all fits together.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), TopologyError> {
        distinct("zone", self.zones.iter())?;
        distinct("node", self.nodes.iter().map(|node| &node.name))?;
        distinct("group", self.groups.iter().map(|group| &group.name))?;
        let (zones, nodes) = (self.zones.len(), self.nodes.len());
        if let Some(Node { name, zone }) = self.nodes.iter().find(|node| node.zone as usize >= zones) {
            let (node, zone) = (name.clone(), *zone);
            return Err(TopologyError::NoSuchZone { node, zone, zones });
        }
        for Placement { name, ranks } in &self.groups {
            let group = name.clone();
            if ranks.is_empty() {
                return Err(TopologyError::NoRanks { group });
            }
            if let Some(rank) = ranks.iter().position(|&node| node as usize >= nodes) {
                let node = ranks[rank];
                return Err(TopologyError::NoSuchNode {
                    group,
                    rank,
                    node,
                    nodes,
                });
            }
        }
        Ok(())
    }

    /// The groups with a rank on this node, in the order of their numbers.
    pub fn groups_on_node(&self, node: u32) -> Vec<u32> {
        self.groups_where(|at| at == node)
    }

    /// The groups with a rank in this zone, in the order of their numbers.
    pub fn groups_in_zone(&self, zone: u32) -> Vec<u32> {
        self.groups_where(|at| self.zone_of(at) == Some(zone))
    }

    /// The nodes of this zone, in the order of their numbers.
    pub fn nodes_in_zone(&self, zone: u32) -> Vec<u32> {
        let nodes = (0..).zip(&self.nodes);
        nodes
            .filter(|(_, node)| node.zone == zone)
            .map(|(number, _)| number)
            .collect()
    }

    /// The zone of a node; none if there is no such node.
    pub fn zone_of(&self, node: u32) -> Option<u32> {
        self.nodes.get(node as usize).map(|node| node.zone)
    }

    fn groups_where(&self, here: impl Fn(u32) -> bool) -> Vec<u32> {
        let groups = (0..).zip(&self.groups);
        let hit = groups.filter(|(_, group)| group.ranks.iter().any(|&node| here(node)));
        hit.map(|(number, _)| number).collect()
    }
}

fn distinct<'a>(what: &'static str, names: impl Iterator<Item = &'a String>) -> Result<(), TopologyError> {
    let mut seen = BTreeMap::new();
    for (second, name) in names.enumerate() {
        if let Some(first) = seen.insert(name, second) {
            let name = name.clone();
            return Err(TopologyError::SameName {
                what,
                first,
                second,
                name,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Zones a (nodes 0, 1) and b (node 2); group 0 over nodes 0 and 1, group 1 on node 1, group 2 on node 2.
    pub fn example() -> Topology {
        let node = |name: &str, zone| Node {
            name: name.to_owned(),
            zone,
        };
        let group = |name: &str, ranks: &[u32]| Placement {
            name: name.to_owned(),
            ranks: ranks.to_vec(),
        };
        Topology {
            zones: vec!["a".to_owned(), "b".to_owned()],
            nodes: vec![node("n0", 0), node("n1", 0), node("n2", 1)],
            groups: vec![
                group("g0", &[0, 0, 1, 1]),
                group("g1", &[1]),
                group("g2", &[2, 2]),
            ],
        }
    }

    #[test]
    fn groups_are_found_by_node_and_by_zone_once_each() {
        let topology = example();
        assert_eq!(topology.check(), Ok(()));
        assert_eq!(topology.groups_on_node(0), [0]);
        assert_eq!(topology.groups_on_node(1), [0, 1]);
        assert_eq!(topology.groups_in_zone(0), [0, 1]);
        assert_eq!(topology.groups_in_zone(1), [2]);
        assert_eq!(topology.groups_on_node(9), [0; 0]);
        assert_eq!(topology.nodes_in_zone(0), [0, 1]);
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let error = |change: fn(&mut Topology)| {
            let mut topology = example();
            change(&mut topology);
            topology.check().unwrap_err().to_string()
        };
        assert_eq!(
            error(|t| t.nodes[2].zone = 2),
            "node n2 is in zone number 2, but there are 2 zones (0 to 1)"
        );
        assert_eq!(
            error(|t| t.groups[0].ranks[3] = 7),
            "rank 3 of group g0 is on node number 7, but there are 3 nodes (0 to 2)"
        );
        assert_eq!(
            error(|t| t.groups[1].ranks.clear()),
            "group g1 has no ranks; give it at least one"
        );
        assert_eq!(
            error(|t| t.nodes[2].name = "n0".to_owned()),
            "nodes 0 and 2 are both called n0; give each its own name"
        );
    }
}
