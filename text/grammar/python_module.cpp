#include "text/grammar/python_module.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "base/json_file.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxModuleBytes = size_t{256} << 20;
constexpr size_t kPage = 65536;  // the largest of any system
constexpr unsigned char kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
constexpr size_t kRoom = 4096;  // bytes of zeros: an object of Python is smaller

bool is_of_python(std::string_view name) { return name.starts_with("Py") || name.starts_with("_Py"); }

// A table of an ELF file that lies in its bytes whole and aligned; empty: it does not.
template <class T>
std::span<const T> table(std::string_view file, uint64_t offset, uint64_t count) {
  const bool fits =
      offset % alignof(T) == 0 && offset <= file.size() && count <= (file.size() - offset) / sizeof(T);
  if (!fits) return {};
  return {reinterpret_cast<const T*>(file.data() + offset), static_cast<size_t>(count)};
}

// Undefined symbols of Python. Nothing: `file` is no shared library of this machine's kind.
std::optional<std::vector<std::string>> wanted_symbols(std::string_view file) {
  const auto headers = table<ElfW(Ehdr)>(file, 0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      headers[0].e_ident[EI_CLASS] != kClass || headers[0].e_ident[EI_DATA] != ELFDATA2LSB)
    return std::nullopt;
  const auto sections = table<ElfW(Shdr)>(file, headers[0].e_shoff, headers[0].e_shnum);
  std::vector<std::string> wanted;
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= sections.size()) continue;
    const ElfW(Shdr)& names = sections[section.sh_link];
    const auto text = table<char>(file, names.sh_offset, names.sh_size);
    for (const auto& symbol :
         table<ElfW(Sym)>(file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym)))) {
      if (symbol.st_shndx != SHN_UNDEF || symbol.st_name >= text.size()) continue;
      const char* const begin = text.data() + symbol.st_name;
      const std::string_view name(begin, strnlen(begin, text.size() - symbol.st_name));
      if (is_of_python(name)) wanted.emplace_back(name);
    }
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

template <class T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The smallest shared library with these symbols: tables on a page that is read, zeros on one that may be
// written. A function that is called after all is no instruction there, and the program ends.
std::string library_of_zeros(const std::vector<std::string>& symbols, uint16_t machine) {
  std::string names(1, '\0');
  std::vector<ElfW(Sym)> table(1);
  const size_t count = symbols.size() + 1;
  const size_t begin = sizeof(ElfW(Ehdr)) + 3 * sizeof(ElfW(Phdr));
  const size_t hash_at = begin + count * sizeof(ElfW(Sym));
  const size_t hash_bytes = (2 + 1 + count) * sizeof(uint32_t);
  const size_t names_at = hash_at + hash_bytes;
  for (const std::string& symbol : symbols) {
    ElfW(Sym) entry{};
    entry.st_name = static_cast<decltype(entry.st_name)>(names.size());
    entry.st_info = static_cast<unsigned char>(STB_GLOBAL << 4 | STT_OBJECT);
    entry.st_shndx = 1;  // defined
    entry.st_size = kRoom;
    table.push_back(entry);
    names += symbol + '\0';
  }
  const size_t zeros_at = (names_at + names.size() + kPage - 1) / kPage * kPage;
  const size_t dynamic_at = zeros_at + kRoom;
  for (ElfW(Sym) & entry : std::span(table).subspan(1)) entry.st_value = zeros_at;
  std::vector<ElfW(Dyn)> dynamic;
  const auto add = [&](auto tag, uint64_t value) {
    ElfW(Dyn) entry{};
    entry.d_tag = tag;
    entry.d_un.d_val = value;
    dynamic.push_back(entry);
  };
  add(DT_HASH, hash_at);
  add(DT_SYMTAB, begin);
  add(DT_STRTAB, names_at);
  add(DT_STRSZ, names.size());
  add(DT_SYMENT, sizeof(ElfW(Sym)));
  add(DT_NULL, 0);
  const size_t dynamic_bytes = dynamic.size() * sizeof(ElfW(Dyn));

  ElfW(Ehdr) header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = kClass;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = machine;
  header.e_version = EV_CURRENT;
  header.e_phoff = sizeof header;
  header.e_ehsize = sizeof header;
  header.e_phentsize = sizeof(ElfW(Phdr));
  header.e_phnum = 3;
  std::string out;
  append(out, header);
  const auto add_segment = [&](uint32_t type, uint32_t flags, size_t at, size_t bytes) {
    ElfW(Phdr) segment{};
    segment.p_type = type;
    segment.p_flags = flags;
    segment.p_offset = segment.p_vaddr = segment.p_paddr = at;
    segment.p_filesz = segment.p_memsz = bytes;
    segment.p_align = type == PT_LOAD ? kPage : alignof(ElfW(Dyn));
    append(out, segment);
  };
  add_segment(PT_LOAD, PF_R, 0, names_at + names.size());
  add_segment(PT_LOAD, PF_R | PF_W, zeros_at, kRoom + dynamic_bytes);
  add_segment(PT_DYNAMIC, PF_R | PF_W, dynamic_at, dynamic_bytes);
  for (const ElfW(Sym) & entry : table) append(out, entry);
  // The hash table has one bucket, whose chain holds all symbols.
  append(out, uint32_t{1});
  append(out, static_cast<uint32_t>(count));
  append(out, static_cast<uint32_t>(count > 1 ? 1 : 0));
  for (size_t i = 0; i < count; ++i) append(out, static_cast<uint32_t>(i > 0 && i + 1 < count ? i + 1 : 0));
  out += names;
  out.resize(dynamic_at, '\0');
  for (const ElfW(Dyn) & entry : dynamic) append(out, entry);
  return out;
}

// Loads a library that is no file.
Status load(const std::string& library) {
  const int fd = memfd_create("python-symbols", MFD_CLOEXEC);
  if (fd < 0) return unavailable(fmt::format("memfd_create: {}", std::strerror(errno)));
  size_t written = 0;
  while (written < library.size()) {
    const ssize_t n = write(fd, library.data() + written, library.size() - written);
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  void* const loaded = written == library.size() ? dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) : nullptr;
  const char* const error = loaded ? nullptr : dlerror();
  // An open file keeps its number: dlopen would take a second library of the same name for the first one.
  if (!loaded) close(fd);
  return loaded ? Status() : unavailable(error ? error : "no room for Python's symbols");
}

// Adds libraries of `root`/lib/python3.*/{site,dist}-packages.
void add_packages_of(const fs::path& root, std::vector<std::string>& found) {
  std::error_code error;
  for (const char* lib : {"lib", "lib64"})
    for (const auto& python : fs::directory_iterator(root / lib, error)) {
      if (!python.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"})
        for (const auto& file : fs::directory_iterator(python.path() / packages / "llguidance", error)) {
          const std::string name = file.path().filename().string();
          if (name.starts_with("_lib") && name.ends_with(".so")) found.push_back(file.path().string());
        }
    }
}

}  // namespace

std::vector<std::string> installed_grammar_libraries() {
  std::vector<std::string> found;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* const root = std::getenv(name); root && *root) add_packages_of(root, found);
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    std::error_code error;
    if (folder.starts_with('/') && fs::exists(fs::path(folder) / "python3", error))
      add_packages_of(fs::path(folder).parent_path(), found);
  }
  if (const char* const home = std::getenv("HOME"); home && *home)
    add_packages_of(fs::path(home) / ".local", found);
  for (const char* root : {"/usr/local", "/usr"}) add_packages_of(root, found);
  // The first of each.
  std::vector<std::string> once;
  for (std::string& file : found)
    if (std::find(once.begin(), once.end(), file) == once.end()) once.push_back(std::move(file));
  return once;
}

Status provide_python_symbols(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string bytes, read_text_file(file, kMaxModuleBytes));
  auto wanted = wanted_symbols(bytes);
  if (!wanted) return invalid_argument(file + ": is no shared library of this kind of machine");
  // Those that a libpython or another module brings already stay theirs.
  std::erase_if(*wanted,
                [](const std::string& name) { return dlsym(RTLD_DEFAULT, name.c_str()) != nullptr; });
  if (wanted->empty()) return invalid_argument(file + ": wants no symbols of Python");
  const auto machine = table<ElfW(Ehdr)>(bytes, 0, 1)[0].e_machine;
  return load(library_of_zeros(*wanted, machine)).in(file);
}

}  // namespace outrider
