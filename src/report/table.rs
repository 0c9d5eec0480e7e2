//! One table, three readers: the terminal, a CSV file, the HTML page.

mod layout;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Width, presets};

use super::escape::escape;
use super::number::{significant, whole};

/// A rectangle of cells under headings with units.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Headings.
    pub columns: Vec<Column>,
    /// The first so many columns say what a row is: a table that is cut in parts has them in each, and they are never
    /// left out.
    pub keys: usize,
    /// Cells by row; missing ones print as empty.
    pub rows: Vec<Vec<Cell>>,
    /// Printed above it.
    pub lead: Option<String>,
    /// Printed under it.
    pub note: Option<String>,
}

/// A heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What the column holds.
    pub name: String,
    /// The unit of all its numbers; `None` for text and mixed columns.
    pub unit: Option<String>,
}

impl Column {
    /// A column without a unit.
    pub fn plain(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: None,
        }
    }

    /// A column of numbers.
    pub fn with_unit(name: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: Some(unit.into()),
        }
    }

    /// The heading as printed: `TTFT p99 (ms)`.
    pub fn heading(&self) -> String {
        self.unit
            .as_ref()
            .map_or_else(|| self.name.clone(), |unit| format!("{} ({unit})", self.name))
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A measured number, printed with four significant digits; in CSV in full.
    Number(f64),
    /// A relative difference, printed as signed per cent; in CSV as the ratio.
    Relative(f64),
    /// A share of a whole, printed as per cent; in CSV as the ratio.
    Share(f64),
    /// There is no such value: a dash, in CSV empty. Never a zero.
    Absent,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}

impl From<f64> for Cell {
    fn from(x: f64) -> Self {
        Self::Number(x)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}

impl Cell {
    /// As people read it.
    pub fn display(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(n) => whole(*n),
            Self::Number(x) => significant(*x, 4),
            Self::Relative(x) => format!("{:+.1} %", x * 100.0),
            Self::Share(x) => format!("{:.2} %", x * 100.0),
            Self::Absent => "–".into(),
        }
    }

    /// As programs read it.
    pub fn exact(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(n) => n.to_string(),
            Self::Number(x) | Self::Relative(x) | Self::Share(x) => x.to_string(),
            Self::Absent => String::new(),
        }
    }

    const fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self {
            title: title.into(),
            columns,
            ..Self::default()
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// A column of numbers is set flush right: it holds at least one number and no words.
    fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().filter_map(|r| r.get(column));
        cells().any(|c| !c.is_text() && *c != Cell::Absent) && !cells().any(Cell::is_text)
    }

    /// For the terminal, without a final newline. With a width in characters, cells wrap to fit into it, at blanks alone
    /// where they can; a table that would be unreadable so is cut in parts, with the key columns in each.
    pub fn terminal(&self, width: Option<u16>) -> String {
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &format!("{}\n", self.title);
        }
        if let Some(lead) = &self.lead {
            text += &format!("{lead}\n");
        }
        let parts: Vec<String> = match width {
            Some(width) => layout::parts(self, width)
                .iter()
                .map(|columns| self.drawn(columns, Some(width)))
                .collect(),
            None => vec![self.drawn(&(0..self.columns.len()).collect::<Vec<_>>(), None)],
        };
        text += &parts.join("\n");
        if let Some(note) = &self.note {
            text += "\n";
            text += note;
        }
        text
    }

    /// Some of the columns, drawn.
    fn drawn(&self, columns: &[usize], width: Option<u16>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
        if let Some(width) = width {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width);
        }
        table.set_header(columns.iter().map(|&i| self.columns[i].heading()));
        for row in &self.rows {
            table.add_row(
                columns
                    .iter()
                    .map(|&i| row.get(i).map_or_else(String::new, Cell::display)),
            );
        }
        for (place, &i) in columns.iter().enumerate() {
            let Some(column) = table.column_mut(place) else {
                continue;
            };
            if self.is_numeric(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if width.is_some() {
                let least = layout::least_width(self, i).saturating_add(layout::PADDING);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
            }
        }
        table.trim_fmt()
    }

    /// As CSV with a heading row, units in the headings, numbers in full.
    pub fn csv(&self) -> String {
        let headings = self.columns.iter().map(Column::heading).collect();
        let rows = self.rows.iter().map(|row| {
            (0..self.columns.len())
                .map(|i| row.get(i).map_or_else(String::new, Cell::exact))
                .collect()
        });
        csv_text(std::iter::once(headings).chain(rows))
    }

    /// As an HTML table, escaped.
    pub fn html(&self) -> String {
        // Told once: each looks at the whole column.
        let classes: Vec<&str> = (0..self.columns.len())
            .map(|i| {
                if self.is_numeric(i) {
                    " class=\"number\""
                } else {
                    ""
                }
            })
            .collect();
        let mut html = String::new();
        if let Some(lead) = &self.lead {
            html += &format!("<p class=\"note\">{}</p>\n", escape(lead));
        }
        html += "<div class=\"table\"><table>\n";
        if !self.title.is_empty() {
            html += &format!("<caption>{}</caption>\n", escape(&self.title));
        }
        html += "<thead><tr>";
        for (column, class) in self.columns.iter().zip(&classes) {
            html += &format!("<th scope=\"col\"{class}>{}</th>", escape(&column.heading()));
        }
        html += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            html += "<tr>";
            for (i, class) in classes.iter().enumerate() {
                let text = row
                    .get(i)
                    .map_or_else(String::new, |cell| escape(&cell.display()));
                html += &format!("<td{class}>{text}</td>");
            }
            html += "</tr>\n";
        }
        html += "</tbody></table></div>\n";
        if let Some(note) = &self.note {
            html += &format!("<p class=\"note\">{}</p>\n", escape(note));
        }
        html
    }
}

/// Rows as CSV text, quoted where needed.
pub(crate) fn csv_text(rows: impl Iterator<Item = Vec<String>>) -> String {
    let quoted = |field: String| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field
        }
    };
    let mut text = String::new();
    for row in rows {
        text += &row.into_iter().map(quoted).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(
            "A <b>",
            vec![Column::plain("name"), Column::with_unit("TTFT p99", "ms")],
        );
        table.push(vec!["x, \"y\" & <z>".into(), 12_345.678.into()]);
        table.push(vec!["none".into(), Cell::Absent]);
        table
    }

    #[test]
    fn the_terminal_shows_units_and_a_dash_for_nothing() {
        let text = sample().terminal(None);
        assert!(
            text.contains("TTFT p99 (ms)") && text.contains("12,346") && text.contains('–'),
            "{text}"
        );
        assert!(!text.ends_with('\n'));
    }

    #[test]
    fn csv_is_exact_and_quoted() {
        let want = "name,TTFT p99 (ms)\n\"x, \"\"y\"\" & <z>\",12345.678\nnone,\n";
        assert_eq!(sample().csv(), want);
    }

    #[test]
    fn html_is_escaped() {
        let html = sample().html();
        assert!(
            html.contains("A &lt;b&gt;") && html.contains("&amp; &lt;z&gt;"),
            "{html}"
        );
        assert!(
            !html.contains("<z>") && html.contains("class=\"number\""),
            "{html}"
        );
    }

    #[test]
    fn a_long_table_takes_time_by_its_length_alone() {
        let mut table = Table::new("", vec![Column::plain("tenant"), Column::plain("work")]);
        for n in 0..60_000_u64 {
            table.push(vec![n.into(), n.into()]);
        }
        let begun = std::time::Instant::now();
        assert_eq!(table.html().matches("<tr>").count(), 60_001);
        // By the square of it: minutes.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn per_cent_only_for_eyes() {
        assert_eq!(Cell::Relative(-0.0834).display(), "-8.3 %");
        assert_eq!(Cell::Relative(-0.0834).exact(), "-0.0834");
        assert_eq!(Cell::Share(0.9912).display(), "99.12 %");
        assert_eq!(Cell::from(None::<f64>), Cell::Absent);
    }
}
