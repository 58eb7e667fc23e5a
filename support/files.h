// Files and folders that other users, or names from a file, could turn against this one.
#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

namespace shadowgraph {

// Returns the folder of kernels, measured calls and calibrations: $XDG_CACHE_HOME/shadowgraph, ~/.cache/shadowgraph, or
// shadowgraph-UID in the folder of temporary files.
std::filesystem::path cache_folder();

// Returns whether a file that is not a folder exists. Never throws, for names of any length.
bool is_file(const std::string& path);

// Creates the folder and its parents. Throws FileError.
void make_folder(const std::filesystem::path& folder);

// Creates the folder, with mode 0700, if it is missing and `create`. Returns why its files cannot be trusted, or "":
// it must belong to this user, and no one else may write to it.
std::string private_folder_problem(const std::filesystem::path& folder, bool create);

// Reads a regular file, not a link, that belongs to this user and that no one else can write. Throws FileError.
std::string read_private_file(const std::string& path);

// Deletes the new files of replace_file() in progress. For signal handlers: calls async-signal-safe functions only.
void remove_unfinished_files() noexcept;

// Replaces the file at `path` by what `write` writes, through a new file with an unpredictable name in the same folder,
// so that readers see, and an interruption leaves, either the old or the new file. A replaced file's mode is kept.
// Pipes and devices are written directly. Symbolic links are kept and their targets replaced. Throws FileError.
void replace_file(const std::string& path, const std::function<void(std::ostream&)>& write);
// The same for read_private_file(): the file gets mode 0600, and its folder is checked, or created with mode 0700.
void replace_private_file(const std::string& path, std::string_view content);

// Prefix of the names of temporary files and folders.
inline constexpr std::string_view kTemporaryPrefix = ".shadowgraph-";

// Converts a name to one component of a path: "a/../b" to "a_.._b". Never "", "." or "..", hidden, or an option.
std::string file_name(std::string_view name);

}  // namespace shadowgraph
