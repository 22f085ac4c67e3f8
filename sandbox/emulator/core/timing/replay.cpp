#include "timing/replay.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <utility>

namespace emulator {

namespace {

constexpr u32 kTracks = 8;

struct Stream {
  std::vector<u32> steps;
  std::size_t at = 0;
  double now = 0, parked = 0, before = 0;  // before: effect of the step before
  double tracks[kTracks] = {};
  bool ready = false;  // own time of the present step has passed
};

struct Token {
  u32 missing = 0;
  double time = 0;
  std::vector<u32> waiting;
};

class Replay {
 public:
  Replay(const std::vector<Step>& steps, const std::vector<double>& starts, const std::vector<u32>& issues, u32 tokens,
         u32 resources)
      : steps_(steps), issues_(issues), streams_(starts.size()), tokens_(tokens), free_(resources) {
    result_.ends.assign(starts.size(), -1);
    result_.marks.assign(starts.size(), -1);
    result_.waited.assign(starts.size(), 0);
    result_.busy.assign(resources, 0);
    if (issues.size() != starts.size()) throw std::invalid_argument("a stream without an issuing resource");
    for (u32 issue : issues) require(issue < resources);
    for (u32 i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      require(step.stream < streams_.size() && step.wait < tokens && step.give < tokens);
      require(step.first < resources && step.second < resources && step.third < resources && step.track < kTracks);
      ++streams_[step.stream].at;
      if (step.give) ++tokens_[step.give].missing;
    }
    for (Stream& stream : streams_) stream.steps.reserve(std::exchange(stream.at, 0));
    for (u32 i = 0; i < steps.size(); ++i) streams_[steps[i].stream].steps.push_back(i);
    for (u32 i = 0; i < starts.size(); ++i) {
      streams_[i].now = starts[i];
      queue_.push({starts[i], i});
    }
  }

  Replayed run() {
    while (!queue_.empty()) {
      const u32 index = queue_.top().second;
      queue_.pop();
      advance(index);
    }
    for (const Token& token : tokens_) result_.complete.push_back(token.missing ? -1 : token.time);
    return std::move(result_);
  }

 private:
  static void require(bool holds) {
    if (!holds) throw std::invalid_argument("a step names a stream, token, resource or track that does not exist");
  }

  // Runs a stream until another is due.
  void advance(u32 index) {
    Stream& stream = streams_[index];
    while (stream.at < stream.steps.size()) {
      if (!queue_.empty() && queue_.top().first < stream.now) {
        queue_.push({stream.now, index});
        return;
      }
      const Step& step = steps_[stream.steps[stream.at]];
      if (!stream.ready) {
        stream.ready = true;
        double& issuing = free_[issues_[index]];
        const double begin = std::max(stream.now, issuing);
        issuing = begin + step.issue;
        result_.busy[issues_[index]] += step.issue;
        stream.now = begin + step.own;
        if (step.flags & kDrain) stream.now = std::max(stream.now, stream.tracks[1]);
        if (step.flags & kMark) result_.marks[index] = stream.now;
        continue;  // in the order of time
      }
      if (step.wait && !passed(stream, index, step)) return;
      take(stream, step);
      stream.ready = false;
      ++stream.at;
    }
    result_.ends[index] = stream.now;
    result_.end = std::max(result_.end, stream.now);
  }

  bool passed(Stream& stream, u32 index, const Step& step) {
    Token& token = tokens_[step.wait];
    if (token.missing) {
      token.waiting.push_back(index);
      return false;
    }
    if (token.time > stream.now) {
      result_.waited[index] += token.time - stream.now;
      stream.now = token.time;
    }
    return true;
  }

  void take(Stream& stream, const Step& step) {
    double effect = stream.now;
    if (step.flags & kTogether) {
      effect = stream.before;
    } else if (step.flags & kOfTrack) {
      effect = std::max(effect, stream.tracks[step.track]);
    } else {
      const double begin = step.first ? std::max(stream.now, free_[step.first]) : stream.now;
      if (step.first) effect = occupy(step.first, stream.now, step.first_time);
      if (step.second) effect = std::max(effect, occupy(step.second, stream.now, step.second_time));
      if (step.third) effect = std::max(effect, occupy(step.third, stream.now, step.third_time));
      effect += step.latency;
      if (step.flags & kHold) stream.now = std::max(stream.now, begin);
    }
    stream.before = effect;
    if (step.track) stream.tracks[step.track] = std::max(stream.tracks[step.track], effect);
    result_.end = std::max(result_.end, effect);
    if (step.flags & kBlock) stream.now = std::max(stream.now, effect);
    if (step.give) give(step.give, effect);
  }

  double occupy(u32 resource, double now, double time) {
    free_[resource] = std::max(free_[resource], now) + time;
    result_.busy[resource] += time;
    return free_[resource];
  }

  void give(u32 which, double effect) {
    Token& token = tokens_[which];
    token.time = std::max(token.time, effect);
    if (--token.missing) return;
    for (u32 index : token.waiting) {
      Stream& stream = streams_[index];
      if (token.time > stream.now) result_.waited[index] += token.time - stream.now;
      stream.now = std::max(stream.now, token.time);
      queue_.push({stream.now, index});
    }
    token.waiting.clear();
  }

  using Due = std::pair<double, u32>;
  const std::vector<Step>& steps_;
  const std::vector<u32>& issues_;
  std::vector<Stream> streams_;
  std::vector<Token> tokens_;
  std::vector<double> free_;  // when each resource has served what it was given
  std::priority_queue<Due, std::vector<Due>, std::greater<>> queue_;
  Replayed result_;
};

}  // namespace

std::vector<Step> steps_of_turns(const Step* cluster, std::size_t count, const Turns& turns) {
  std::vector<bool> used(turns.streams);
  for (std::size_t i = 0; i < count; ++i) used.at(cluster[i].stream) = true;
  const u32 tokens = turns.tokens + 1;
  std::vector<Step> made;
  made.reserve(turns.count * (count + 2 * turns.streams));
  for (u32 turn = 0; turn < turns.count; ++turn) {
    const u32 first_stream = turn * turns.streams, first_token = turn * tokens;
    for (u32 stream = 0; turn >= turns.resident && stream < turns.streams; ++stream) {
      if (!used[stream]) continue;
      const u32 before = (turn - turns.resident) * tokens + turns.tokens;
      made.push_back({.stream = first_stream + stream, .wait = before, .flags = kBlock, .latency = turns.pause});
    }
    for (std::size_t i = 0; i < count; ++i) {
      Step& step = made.emplace_back(cluster[i]);
      step.stream += first_stream;
      if (step.wait) step.wait += first_token;
      if (step.give) step.give += first_token;
    }
    for (u32 stream = 0; stream < turns.streams; ++stream) {
      if (used[stream])
        made.push_back({.stream = first_stream + stream, .give = first_token + turns.tokens, .flags = kOfTrack});
    }
  }
  return made;
}

Replayed replay(const std::vector<Step>& steps, const std::vector<double>& starts, const std::vector<u32>& issues, u32 tokens,
                u32 resources) {
  return Replay(steps, starts, issues, tokens, resources).run();
}

}  // namespace emulator
