//! The commands in a guide, and what it says that they print.

/// A part of a guide.
pub enum Part<'a> {
    /// Anything but a command.
    Text(&'a str),
    /// A command after `$`, with the lines of a here document, and the lines after it.
    Command { text: String, printed: String },
}

/// Takes a guide apart: commands are in blocks that begin with ```` ```console ````.
pub fn parse(guide: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut in_block = false;
    let mut open_document = false;
    for line in guide.split_inclusive('\n') {
        let is_fence = line.starts_with("```");
        if is_fence {
            in_block = !in_block && line.trim_end() == "```console";
        }
        match (in_block && !is_fence, line.strip_prefix("$ "), parts.last_mut()) {
            (true, Some(command), _) if !open_document => {
                open_document = command.contains("<<");
                parts.push(Part::Command { text: command.trim_end().to_owned(), printed: String::new() });
            }
            (true, _, Some(Part::Command { text, .. })) if open_document => {
                *text += &format!("\n{}", line.trim_end());
                open_document = line.trim_end() != "END";
            }
            (true, _, Some(Part::Command { printed, .. })) => *printed += line,
            _ => parts.push(Part::Text(line)),
        }
    }
    parts
}
