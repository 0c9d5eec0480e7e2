//! How a table is fitted to its readers: columns that say nothing are left out, one row is set upright, and what is too wide
//! is cut in parts.

use super::{Cell, Column, Table};

/// Blanks beside a cell.
pub(super) const PADDING: u16 = 2;
/// Characters between two cells.
const GAP: u16 = 1;
/// Lines that a heading, or words in a cell, should take at most.
const MOST_LINES: usize = 3;
/// No column asks for more than so many characters; longer words are cut.
const WIDEST: usize = 40;

/// The narrowest that a column can be and still be read: no word is cut, a heading takes few lines.
pub(super) fn least_width(table: &Table, column: usize) -> u16 {
    let heading = narrowest(&table.columns[column].heading());
    let cells = table.rows.iter().filter_map(|row| row.get(column));
    let widest = cells
        .map(|cell| match cell {
            Cell::Text(text) => narrowest(text),
            // Numbers with their per cent stay on one line.
            other => other.display().chars().count(),
        })
        .max();
    u16::try_from(heading.max(widest.unwrap_or(0)).min(WIDEST)).unwrap_or(u16::MAX)
}

/// The smallest width at which words take [`MOST_LINES`] lines or fewer and none is cut; of many words, [`WIDEST`].
fn narrowest(text: &str) -> usize {
    let words: Vec<usize> = text.split_whitespace().map(|w| w.chars().count()).collect();
    let longest = words.iter().copied().max().unwrap_or(0);
    (longest..WIDEST)
        .find(|&width| lines(&words, width) <= MOST_LINES)
        .unwrap_or_else(|| longest.max(WIDEST))
}

/// Lines that words of these lengths take.
fn lines(words: &[usize], width: usize) -> usize {
    let (mut lines, mut used) = (1, 0);
    for &word in words {
        if used > 0 && used + 1 + word > width {
            (lines, used) = (lines + 1, word);
        } else {
            used += word + usize::from(used > 0);
        }
    }
    lines
}

/// The columns of each part of a table that fits into a width: all in one if they do, else each with the key columns first.
pub(super) fn parts(table: &Table, width: u16) -> Vec<Vec<usize>> {
    let takes = |column: usize| least_width(table, column) + PADDING + GAP;
    let keys: Vec<usize> = (0..table.keys.min(table.columns.len())).collect();
    let of_keys: u16 = keys.iter().map(|&i| takes(i)).fold(0, u16::saturating_add);
    let (mut all, mut part, mut used) = (Vec::new(), keys.clone(), of_keys);
    for column in keys.len()..table.columns.len() {
        let needs = takes(column);
        if part.len() > keys.len() && used.saturating_add(needs) > width {
            all.push(std::mem::replace(&mut part, keys.clone()));
            used = of_keys;
        }
        part.push(column);
        used = used.saturating_add(needs);
    }
    all.push(part);
    all
}

impl Table {
    /// The same table with its first columns marked as those that say what a row is.
    #[must_use]
    pub fn with_keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// For people: without the columns in which no row has anything, and with those that are the same in each of several
    /// rows told once, above. Files keep all columns.
    #[must_use]
    pub fn condensed(&self) -> Self {
        let cell = |row: &Vec<Cell>, i: usize| row.get(i).cloned().unwrap_or(Cell::Absent);
        let is_empty = |cell: &Cell| matches!(cell, Cell::Absent) || *cell == Cell::Text(String::new());
        let (mut shown, mut same) = (Vec::new(), Vec::new());
        for i in 0..self.columns.len() {
            let mut cells = self.rows.iter().map(|row| cell(row, i));
            let Some(first) = cells.next().filter(|_| i >= self.keys) else {
                shown.push(i);
                continue;
            };
            match (cells.clone().all(|c| c == first), is_empty(&first)) {
                (true, true) => {}
                (true, false) if self.rows.len() > 1 => {
                    same.push(format!("{}: {}", self.columns[i].heading(), first.display()));
                }
                _ => shown.push(i),
            }
        }
        let said = (!same.is_empty()).then(|| format!("The same in all rows: {}.", same.join(", ")));
        let lead: Vec<String> = self.lead.iter().cloned().chain(said).collect();
        Self {
            title: self.title.clone(),
            keys: self.keys,
            columns: shown.iter().map(|&i| self.columns[i].clone()).collect(),
            rows: self
                .rows
                .iter()
                .map(|row| shown.iter().map(|&i| cell(row, i)).collect())
                .collect(),
            lead: (!lead.is_empty()).then(|| lead.join("\n")),
            note: self.note.clone(),
        }
    }

    /// A table of one row as figure, value and unit; any other as it is.
    #[must_use]
    pub fn upright(&self) -> Self {
        let [row] = self.rows.as_slice() else {
            return self.clone();
        };
        let figures = self.columns.iter().zip(row).map(|(column, cell)| {
            let unit = column.unit.clone().unwrap_or_default();
            vec![column.name.as_str().into(), cell.clone(), unit.into()]
        });
        Self {
            title: self.title.clone(),
            columns: ["figure", "value", "unit"].map(Column::plain).to_vec(),
            keys: 1,
            rows: figures.collect(),
            lead: self.lead.clone(),
            note: self.note.clone(),
        }
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
