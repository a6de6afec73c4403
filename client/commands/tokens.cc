#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

const std::map<std::string, v1::Role> kRoles = {
    {"viewer", v1::VIEWER}, {"submitter", v1::SUBMITTER}, {"admin", v1::ADMIN}};

struct CreateOptions {
  std::string user;
  std::string role;
  std::optional<std::string> lifetime;
  std::optional<std::string> out;
};

// A new file that its user alone may read; gone with this object unless something was kept in it.
class SecretFile {
 public:
  explicit SecretFile(std::string path)
      : path_(std::move(path)),
        fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)),
        error_(errno) {}
  ~SecretFile() {
    if (fd_ < 0) return;
    close(fd_);
    if (!kept_) unlink(path_.c_str());
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  absl::Status status() const { return fd_ >= 0 ? absl::OkStatus() : Error(error_); }
  // On disk when this returns.
  absl::Status Keep(const std::string& secret) {
    const std::string line = secret + "\n";
    for (size_t at = 0; at < line.size();) {
      const ssize_t n = write(fd_, line.data() + at, line.size() - at);
      if (n < 0 && errno != EINTR) return Error(errno);
      if (n > 0) at += static_cast<size_t>(n);
    }
    if (fsync(fd_) != 0) return Error(errno);
    kept_ = true;
    return absl::OkStatus();
  }

 private:
  absl::Status Error(int error) const { return absl::InvalidArgumentError("--out: " + path_ + ": " + strerror(error)); }

  const std::string path_;
  const int fd_;
  const int error_;
  bool kept_ = false;
};

std::string TimeText(bool set, const google::protobuf::Timestamp& time) { return set ? DateAndTime(time) : "-"; }

std::string Describe(const v1::Token& token) {
  std::string text = token.id() + " " + Clean(token.user()) + " " + v1::Role_Name(token.role());
  if (token.has_expire_time())
    text += ", until " + DateAndTime(token.expire_time()) + " " + ZoneOf(token.expire_time());
  if (token.has_revoke_time()) text += ", revoked";
  return text;
}

// Seconds.
absl::StatusOr<int64_t> ParseLifetime(const std::string& text) {
  absl::Duration lifetime;
  int64_t days = 0;
  // absl has no days.
  const bool in_days = absl::EndsWith(text, "d") && absl::SimpleAtoi(text.substr(0, text.size() - 1), &days);
  constexpr int64_t kMaxDays = 36600;
  if (in_days && days > 0 && days <= kMaxDays) return days * 24 * 3600;
  if (!in_days && absl::ParseDuration(text, &lifetime) && lifetime >= absl::Seconds(1) &&
      lifetime <= absl::Hours(24 * kMaxDays)) {
    return absl::ToInt64Seconds(lifetime);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--lifetime: ", Quoted(text), " is no time from 1s to ", kMaxDays, "d, such as 90d, 12h or 30m"));
}

absl::StatusOr<v1::CreateTokenResponse> Create(const CreateOptions& options, const CommandContext& context) {
  v1::CreateTokenRequest request;
  request.set_user(options.user);
  request.set_role(kRoles.at(CLI::detail::to_lower(options.role)));
  if (options.lifetime) {
    const absl::StatusOr<int64_t> seconds = ParseLifetime(*options.lifetime);
    if (!seconds.ok()) return seconds.status();
    request.set_lifetime_seconds(*seconds);
  }
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return connection.status();
  absl::StatusOr<v1::CreateTokenResponse> response = (*connection)->CreateToken(request);
  if (response.ok()) return response;
  return OfOptions(response.status(), {{"--user " + options.user, "user"},
                                       {"--role " + options.role, "role"},
                                       {"--lifetime " + options.lifetime.value_or(""), "lifetime_seconds"}});
}

int RunCreate(const CreateOptions& options, const CommandContext& context) {
  std::optional<SecretFile> file;
  if (options.out) file.emplace(*options.out);
  // First: a token whose secret cannot be kept is not made.
  if (file && !file->status().ok()) return Fail(context, file->status());
  absl::StatusOr<v1::CreateTokenResponse> response = Create(options, context);
  if (!response.ok()) return Fail(context, response.status());
  if (file) {
    if (const absl::Status kept = file->Keep(response->secret()); !kept.ok()) {
      *context.err << "its secret is lost: ampctl tokens revoke " << Clean(response->token().id()) << std::endl;
      return Fail(context, kept);
    }
    response->clear_secret();
  }
  if (context.format != Format::kTable) {
    PrintMessage(*response, context.format, *context.out);
    return kExitSucceeded;
  }
  *context.err << "token " << Describe(response->token()) << "; its secret is "
               << (file ? "in " + *options.out : "not shown again") << std::endl;
  // Alone, so that it can be piped.
  if (!file) *context.out << Clean(response->secret()) << std::endl;
  return kExitSucceeded;
}

int RunRevoke(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Token> token = (*connection)->RevokeToken(id);
  if (!token.ok()) return Fail(context, token.status());
  if (context.format == Format::kTable) {
    *context.out << Describe(*token) << std::endl;
  } else {
    PrintMessage(*token, context.format, *context.out);
  }
  return kExitSucceeded;
}

int RunList(const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListTokensResponse> response = (*connection)->ListTokens();
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    Table table({"ID", "USER", "ROLE", "CREATED", "EXPIRES", "REVOKED"});
    for (const v1::Token& token : response->tokens()) {
      table.Add({token.id(), Clean(token.user()), v1::Role_Name(token.role()),
                 TimeText(token.has_create_time(), token.create_time()),
                 TimeText(token.has_expire_time(), token.expire_time()),
                 TimeText(token.has_revoke_time(), token.revoke_time())});
    }
    *context.out << table.ToString() << std::flush;
  } else if (context.format == Format::kJsonl) {
    for (const v1::Token& token : response->tokens()) PrintMessage(token, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

void AddCreate(CLI::App* tokens, CommandContext* context) {
  CLI::App* verb = tokens->add_subcommand("create", "Make a token; its secret is told once");
  auto options = std::make_shared<CreateOptions>();
  verb->add_option("--user", options->user, "Whose jobs they are that it submits")->required()->type_name("USER");
  verb->add_option("--role", options->role, "viewer, submitter or admin")
      ->required()
      ->check(CLI::IsMember({"viewer", "submitter", "admin"}, CLI::ignore_case))
      ->type_name("ROLE");
  verb->add_option("--lifetime", options->lifetime, "Until it expires, as 12h or 90d; default: it does not")
      ->type_name("TIME");
  verb->add_option("--out", options->out,
                   "A new file for the secret, which you alone may read; default: standard output")
      ->type_name("FILE");
  verb->footer("Example:\n  ampctl tokens create --user ann --role submitter --out ann.token");
  verb->callback([options, context] { context->exit_code = RunCreate(*options, *context); });
}

}  // namespace

void AddTokens(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("tokens", "Make, revoke and list the tokens by which users get in");
  verb->require_subcommand(1);
  AddCreate(verb, context);
  CLI::App* revoke = verb->add_subcommand("revoke", "Nobody gets in by the token any more; its streams end");
  auto id = std::make_shared<std::string>();
  revoke->add_option("TOKEN", *id, "Its id, as `ampctl tokens list` shows it, or a leaked secret")->required();
  revoke->footer("Example:\n  ampctl tokens revoke 01m7z2rv60wygv8y37snyrexb9");
  revoke->callback([id, context] { context->exit_code = RunRevoke(*id, *context); });
  CLI::App* list = verb->add_subcommand("list", "All tokens, without their secrets");
  list->footer("Example:\n  ampctl tokens list");
  list->callback([context] { context->exit_code = RunList(*context); });
  verb->footer("Example:\n  ampctl tokens create --user ann --role submitter --out ann.token");
}

}  // namespace ampd::client
