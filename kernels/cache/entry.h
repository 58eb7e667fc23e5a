// Reads, writes and locks one entry of the cache's folder: STEM.cpp, STEM.so, STEM.json. Internal to kernels/cache.
#pragma once

#include <map>
#include <string>

namespace shadowgraph {

struct CacheManifest {
  std::string name;      // of the operator's folder
  std::string key;       // in full
  std::string identity;  // of the back end, the key's second half
  std::string digest;    // of the library
  std::map<std::string, std::string> verdicts;
};

// Throws KernelError if the entry is not there, is cut short or has no manifest.
CacheManifest read_manifest(const std::string& path);
// Throws FileError.
void write_manifest_file(const std::string& path, const CacheManifest& manifest);

// Returns what is wrong with the library at STEM.so, or "" if it is the one that the manifest names.
std::string library_problem(const std::string& stem, const CacheManifest& manifest);

// A lock that one process and thread holds at a time, for as long as the object lives. It is given up if the process
// ends.
class EntryLock {
 public:
  // `held()` is false where there can be no lock file.
  explicit EntryLock(const std::string& path);
  ~EntryLock();
  EntryLock(const EntryLock&) = delete;
  EntryLock& operator=(const EntryLock&) = delete;
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace shadowgraph
